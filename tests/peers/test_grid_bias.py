"""GridBias against transformers' Swin and BEiT and timm."""

import types

import pytest
import torch

from posenc import Positions
from posenc.encodings.distance_biases.grid_bias import GridBias

REASON = "the peers extra is not installed"
WINDOWS = [(7, 7), (2, 5), (1, 4)]


@pytest.mark.parametrize("window", WINDOWS)
def test_transformers_reads_the_same_rows_in_its_swin(window: tuple[int, int]) -> None:
    peer = pytest.importorskip("transformers.models.swin.modeling_swin", reason=REASON)
    encoding, swin = GridBias(3, window=window), peer.SwinRelativePositionBias(3, window)
    with torch.no_grad():
        swin.relative_position_bias_table.copy_(encoding.table)
    assert encoding.bias(Positions.grid(*window)).equal(swin())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("prefix", [0, 1])
def test_timm_reads_the_same_rows(window: tuple[int, int], prefix: int, timm_layer) -> None:
    peer = timm_layer("pos_embed_rel").RelPosBias(window, 3, prefix_tokens=prefix)
    encoding, rows = GridBias(3, window=window), (2 * window[0] - 1) * (2 * window[1] - 1)
    with torch.no_grad():
        encoding.table.copy_(peer.relative_position_bias_table[:rows])
    # A class token has no position: only timm has rows and columns for it.
    expected = peer.get_bias()[:, :, prefix:, prefix:]
    assert encoding.bias(Positions.grid(*window)).equal(expected)


def beit_layer(window: tuple[int, int], table: torch.Tensor) -> torch.nn.Module:
    peer = pytest.importorskip("transformers.models.beit.modeling_beit", reason=REASON)
    config = types.SimpleNamespace(image_size=window, patch_size=1, num_attention_heads=table.shape[1])
    layer = peer.BeitRelativePositionBias(config)
    with torch.no_grad():
        layer.relative_position_bias_table[: len(table)] = table
    return layer


@pytest.mark.parametrize("new", [(5, 5), (8, 8), (3, 7)])
def test_transformers_resamples_a_square_window_alike_in_its_beit(new: tuple[int, int]) -> None:
    encoding = GridBias(3, window=(5, 5), std=1.0)
    reference = beit_layer((5, 5), encoding.table)(new)[:, :, 1:, 1:]
    torch.testing.assert_close(encoding.resampled(*new).bias(Positions.grid(*new)), reference, rtol=1e-5, atol=1e-5)


def test_a_window_that_is_not_square_keeps_its_axes_where_beits_are_exchanged() -> None:
    # Known difference: transformers reads the table as width times height, and resamples even to the same size.
    encoding = GridBias(3, window=(2, 5), std=1.0)
    assert encoding.resampled(2, 5).table.equal(encoding.table)
    reference = beit_layer((2, 5), encoding.table)((2, 5))[:, :, 1:, 1:]
    assert (encoding.bias(Positions.grid(2, 5)) - reference).abs().max() > 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_timm_resamples_with_distances_that_grow_geometrically(timm_layer) -> None:
    # Known difference: BEiT's fine-tuning spaces the old rows geometrically, closest in the middle.
    encoding = GridBias(3, window=(5, 5), std=1.0)
    resize = timm_layer("pos_embed_rel").resize_rel_pos_bias_table
    reference = resize(encoding.table.detach(), new_window_size=(8, 8), new_bias_shape=(225, 3))
    table = encoding.resampled(8, 8).table
    torch.testing.assert_close(table[112], reference[112])
    assert (table - reference).abs().max() > 0.1
