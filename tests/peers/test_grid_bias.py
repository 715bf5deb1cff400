"""The relative position table of a window, against transformers' Swin and BEiT and timm."""

import types

import pytest
import torch

from posenc import Positions
from posenc.encodings.distance_biases.grid_bias import GridBias

NEEDED = "the peers extra is not installed"
WINDOWS = [(7, 7), (2, 5), (1, 4)]


@pytest.mark.parametrize("window", WINDOWS)
def test_transformers_reads_the_same_rows_in_its_swin(window: tuple[int, int]) -> None:
    peer = pytest.importorskip("transformers.models.swin.modeling_swin", reason=NEEDED)
    ours, theirs = GridBias(3, window=window), peer.SwinRelativePositionBias(3, window)
    with torch.no_grad():
        theirs.relative_position_bias_table.copy_(ours.table)
    assert ours.bias(Positions.grid(*window)).equal(theirs())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("prefix", [0, 1])
def test_timm_reads_the_same_rows(window: tuple[int, int], prefix: int, timm_layer) -> None:
    theirs = timm_layer("pos_embed_rel").RelPosBias(window, 3, prefix_tokens=prefix)
    ours, rows = GridBias(3, window=window), (2 * window[0] - 1) * (2 * window[1] - 1)
    with torch.no_grad():
        ours.table.copy_(theirs.relative_position_bias_table[:rows])
    # A class token stands at no position: its rows and columns are theirs alone.
    expected = theirs.get_bias()[:, :, prefix:, prefix:]
    assert ours.bias(Positions.grid(*window)).equal(expected)


def beit(window: tuple[int, int], table: torch.Tensor) -> torch.nn.Module:
    peer = pytest.importorskip("transformers.models.beit.modeling_beit", reason=NEEDED)
    config = types.SimpleNamespace(image_size=window, patch_size=1, num_attention_heads=table.shape[1])
    theirs = peer.BeitRelativePositionBias(config)
    with torch.no_grad():
        theirs.relative_position_bias_table[: len(table)] = table
    return theirs


@pytest.mark.parametrize("new", [(5, 5), (8, 8), (3, 7)])
def test_transformers_resamples_a_square_window_alike_in_its_beit(new: tuple[int, int]) -> None:
    ours = GridBias(3, window=(5, 5), std=1.0)
    theirs = beit((5, 5), ours.table)(new)[:, :, 1:, 1:]
    torch.testing.assert_close(ours.resampled(*new).bias(Positions.grid(*new)), theirs, rtol=1e-5, atol=1e-5)


def test_a_window_that_is_not_square_keeps_its_axes_where_beits_are_exchanged() -> None:
    # Known difference: transformers takes the rows of the table as width times height and resamples even to itself.
    ours = GridBias(3, window=(2, 5), std=1.0)
    assert ours.resampled(2, 5).table.equal(ours.table)
    theirs = beit((2, 5), ours.table)((2, 5))[:, :, 1:, 1:]
    assert (ours.bias(Positions.grid(2, 5)) - theirs).abs().max() > 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_timm_resamples_with_distances_that_grow_geometrically(timm_layer) -> None:
    # Known difference: BEiT's fine-tuning spreads the old rows with growing steps, the middle ones close together.
    ours = GridBias(3, window=(5, 5), std=1.0)
    resize = timm_layer("pos_embed_rel").resize_rel_pos_bias_table
    theirs = resize(ours.table.detach(), new_window_size=(8, 8), new_bias_shape=(225, 3))
    mine = ours.resampled(8, 8).table
    torch.testing.assert_close(mine[112], theirs[112])
    assert (mine - theirs).abs().max() > 0.1
