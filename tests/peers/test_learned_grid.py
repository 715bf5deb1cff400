"""LearnedGrid against timm's resampling of ViT tables."""

import pytest
import torch

from posenc.encodings.added.learned_grid import LearnedGrid


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((14, 14), (7, 7)), ((6, 9), (11, 4)), ((8, 8), (8, 8))]
)
def test_timm_resamples_alike_and_leaves_the_prefix_rows(timm_layer, old: tuple, new: tuple, antialias: bool) -> None:
    peer = timm_layer("pos_embed")
    encoding = LearnedGrid(5, grid=old, prefix=2)
    table = encoding.table.detach()[None]
    reference = peer.resample_abs_pos_embed(table, list(new), list(old), num_prefix_tokens=2, antialias=antialias)
    actual = encoding.resampled(*new, antialias=antialias)
    # timm computes in float32, posenc in float64.
    torch.testing.assert_close(actual.table[None], reference, rtol=0, atol=1e-7)
    assert torch.equal(actual.table[:2], encoding.table[:2])


def test_timm_guesses_a_square_and_we_are_told_the_grid(timm_layer) -> None:
    peer = timm_layer("pos_embed")
    encoding = LearnedGrid(5, grid=(2, 8))
    reference = peer.resample_abs_pos_embed(encoding.table.detach()[None], [4, 4], num_prefix_tokens=0)
    # Known difference: timm takes 16 tokens as 4 x 4, and returns the table unchanged.
    assert torch.equal(reference[0], encoding.table)
    assert not torch.allclose(encoding.resampled(4, 4).table, encoding.table)
