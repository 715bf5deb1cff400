"""Learned tables of another size, against timm's resampling."""

import pytest
import torch

from posenc.checkpoints.conversion.tables import resize_grid


@pytest.mark.parametrize("new", [(8, 12), (3, 5), (7, 4)])
def test_timm_resamples_grids_to_the_same_tables(new: tuple[int, int], timm_layer) -> None:
    table = torch.randn(1, 2 + 6 * 9, 5)
    reference = timm_layer("pos_embed").resample_abs_pos_embed(table, list(new), [6, 9], 2, antialias=False)
    torch.testing.assert_close(resize_grid(table, (6, 9), new, prefix=2), reference)
