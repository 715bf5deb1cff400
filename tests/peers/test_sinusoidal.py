"""Sinusoidal against positional_encodings, timm, transformers and x-transformers."""

import math

import pytest
import torch

from posenc import Positions
from posenc.encodings.added.sinusoidal import Sinusoidal

REASON = "the peers extra is not installed"


@pytest.mark.parametrize("dim", [8, 15, 30, 7])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_positional_encodings_agree_on_one_two_and_three_axes(axes: int, dim: int) -> None:
    peer = pytest.importorskip("positional_encodings.torch_encodings", reason=REASON)
    sizes = (11, 4, 5)[:axes]
    reference = getattr(peer, f"PositionalEncoding{axes}D")(dim)(torch.zeros(1, *sizes, dim)).view(-1, dim)
    if (axes, dim) in ((3, 7), (3, 8)):
        # Known difference: each axis takes 4 channels, and positional_encodings leaves none for the third one.
        assert torch.equal(reference.view(-1, 5, dim)[:, 0], reference.view(-1, 5, dim)[:, 4])
        with pytest.raises(ValueError, match=r"leaves no channel for the last of axes=3; give dim=12"):
            Sinusoidal(dim, axes=axes)
        return
    actual = Sinusoidal(dim, axes=axes).encode(Positions.grid(*sizes))[0].float()
    error = float((actual - reference).abs().max())
    if axes == 1 and dim % 2:
        # Known difference: an odd width is rounded up in the exponent, base^(-2k/(dim+1)); the paper has dim.
        assert error > 0.1
        angles = [10 / 10_000 ** (2 * k / (dim + 1)) for k in range((dim + 1) // 2)]
        assert reference[10, ::2].tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-5)
    else:
        assert error < 2e-6


def test_positional_encodings_gives_zeros_for_whole_numbers_and_we_do_not() -> None:
    peer = pytest.importorskip("positional_encodings.torch_encodings", reason=REASON)
    reference = peer.PositionalEncoding1D(8)(torch.zeros(1, 5, 8, dtype=torch.int64))
    # Known difference: the sines go into a table of the input's dtype (peers.md 3a, row 28).
    assert reference.unique().tolist() in ([0], [-1, 0, 1], [0, 1])
    actual = Sinusoidal(8)(torch.zeros(1, 5, 8), positions=torch.arange(5))
    assert actual[0].unique().numel() > 20


def test_positional_encodings_keeps_the_dtype_of_the_call_before_and_we_do_not() -> None:
    peer = pytest.importorskip("positional_encodings.torch_encodings", reason=REASON)
    layer, encoding = peer.PositionalEncoding1D(8), Sinusoidal(8)
    layer(torch.zeros(1, 5, 8))
    # Known difference: the cached table is used again for the same shape in any dtype (peers.md 3a, row 28).
    assert layer(torch.zeros(1, 5, 8, dtype=torch.float64)).dtype == torch.float32
    encoding(torch.zeros(1, 5, 8))
    assert encoding(torch.zeros(1, 5, 8, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("interleave", "layout"), [(True, "concatenated"), (False, "sines_first")])
@pytest.mark.parametrize("reverse", [False, True])
def test_timm_agrees_on_two_axes(timm_layer, interleave: bool, layout: str, reverse: bool) -> None:
    peer = timm_layer("pos_embed_sincos")
    reference = peer.build_sincos2d_pos_embed([5, 7], 24, reverse_coord=reverse, interleave_sin_cos=interleave)
    encoding, at = Sinusoidal(24, layout=layout, axes=2), Positions.grid(5, 7)
    if reverse:
        # timm then takes a 7 x 5 grid: it also orders the tokens by column.
        at = Positions.grid(7, 5)
    torch.testing.assert_close(encoding.encode(at)[0].float(), reference, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dim", [64, 63])
def test_m2m_100_agrees_with_endpoint_and_its_offset_of_two(dim: int) -> None:
    peer = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100", reason=REASON)
    reference = peer.M2M100SinusoidalPositionalEmbedding.get_embedding(300, dim, padding_idx=1)
    actual = Sinusoidal(dim, layout="concatenated", endpoint=True).table(300)[0]
    no_padding = torch.arange(300) != 1
    # M2M-100's angles are float32: 300 positions times 2^-24.
    assert float((actual - reference)[no_padding].abs().max()) < 3e-5
    # Known difference: M2M-100's row of the padding id is zero; in posenc, Positions has the padding.
    assert not reference[1].any() and actual[1].any()


def test_scaled_is_that_of_x_transformers_and_takes_left_padding() -> None:
    peer = pytest.importorskip("x_transformers.x_transformers", reason=REASON)
    layer, encoding = peer.ScaledSinusoidalEmbedding(32), Sinusoidal(32, layout="concatenated", scaled=True)
    reference = layer(torch.zeros(1, 40, 32))
    actual = encoding(torch.zeros(1, 40, 32))[0]
    torch.testing.assert_close(actual, reference, rtol=0, atol=1e-6)


def test_half_precision_keeps_positions_apart_where_bfloat16_positions_would_not() -> None:
    # Keras hub counts its positions in bfloat16: off by up to 1.99 at 1,024 tokens (peers.md 3c, item 11).
    exact = Sinusoidal(64).table(1024, dtype=torch.float64)
    positions = torch.arange(1024, dtype=torch.bfloat16).double()
    assert float((Sinusoidal(64).table(positions, dtype=torch.float64) - exact).abs().max()) > 1
    actual = Sinusoidal(64)(torch.zeros(1, 1024, 64, dtype=torch.bfloat16))
    assert float((actual.double() - exact).abs().max()) < 2**-8 and actual[0].unique(dim=0).shape[0] == 1024
