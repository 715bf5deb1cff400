"""Learned tables of another size, against timm's resampling."""

import pytest
import torch

from posenc.checkpoints.conversion.tables import resize_grid, resize_window


@pytest.mark.parametrize("new", [(8, 12), (3, 5), (7, 4)])
@pytest.mark.parametrize("antialias", [True, False])
def test_timm_resamples_grids_to_the_same_tables(new: tuple[int, int], antialias: bool, timm_layer) -> None:
    table = torch.randn(1, 2 + 6 * 9, 5)
    theirs = timm_layer("pos_embed").resample_abs_pos_embed(table, list(new), [6, 9], 2, antialias=antialias)
    torch.testing.assert_close(resize_grid(table, (6, 9), new, prefix=2, antialias=antialias), theirs)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("new", [(12, 12), (9, 9), (14, 10)])
def test_timm_resizes_windows_to_the_same_tables(new: tuple[int, int], timm_layer) -> None:
    table = torch.randn(13 * 13 + 3, 4)
    shape = ((2 * new[0] - 1) * (2 * new[1] - 1) + 3, 4)
    theirs = timm_layer("pos_embed_rel")
    evenly = theirs.resize_rel_pos_bias_table_simple(table, new, shape)
    torch.testing.assert_close(resize_window(table, (7, 7), new, "cubic", extra=3), evenly)
    # timm searches the ratio to six digits, and above 1.01 only.
    growing = theirs.resize_rel_pos_bias_table(table, new, shape, (7, 7))
    torch.testing.assert_close(resize_window(table, (7, 7), new, "geometric", extra=3), growing, atol=1e-4, rtol=0)
