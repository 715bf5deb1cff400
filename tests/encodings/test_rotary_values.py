"""Rotary on values agrees with the paper's explicit sums."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import Attention, Keys, Positions, masks
from posenc.encoding.base import Compose
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.rules.rotary_values import RotaryValues
from posenc.kernels import bind
from posenc.tokens.masks import Mask


def rotation(angle: Tensor, layout: str) -> Tensor:
    """Return the matrices [..., 2 P, 2 P] that rotate pair p by angle[..., p]."""
    P = angle.shape[-1]
    out = torch.zeros(*angle.shape[:-1], 2 * P, 2 * P, dtype=angle.dtype)
    for p in range(P):
        a, b = (p, p + P) if layout == "half" else (2 * p, 2 * p + 1)
        out[..., a, a], out[..., b, b] = angle[..., p].cos(), angle[..., p].cos()
        out[..., a, b], out[..., b, a] = -angle[..., p].sin(), angle[..., p].sin()
    return out


def angles(apart: Tensor, width: int, base: float) -> Tensor:
    return apart[..., None] * torch.tensor([base ** (-2 * p / width) for p in range(width // 2)], dtype=torch.float64)


def written_out(weights: Tensor, v: Tensor, m: Tensor, n: Tensor, encoding: RotaryValues) -> Tensor:
    """Return z_i = sum_j A_ij R(n_j - m_i) v_j with every rotated value explicit."""
    width = encoding.width
    turn = rotation(angles(n[None, :] - m[:, None], width, encoding.base), encoding.layout)  # [T, S, r, r]
    first = encoding.head_dim - width if encoding.trailing else 0
    channels = slice(first, first + width)
    out = weights @ v
    out[..., channels] = torch.einsum("bhts,tsij,bhsj->bhti", weights, turn, v[..., channels])
    return out


@given(
    st.sampled_from([(8, 1.0), (8, 0.5), (12, 1 / 3)]),
    st.sampled_from(["half", "interleaved"]),
    st.booleans(),
    st.floats(2, 1e6),
    st.sampled_from([3, 1]),
    st.sampled_from([masks.causal(), masks.bidirectional(), masks.window(3)]),
    st.booleans(),
)
def test_values_are_turned_by_their_distance(
    size: tuple[int, float], layout: str, trailing: bool, base: float, kv_heads: int, mask: Mask, whole: bool
) -> None:
    encoding = RotaryValues(size[0], base=base, layout=layout, partial=size[1], trailing=trailing)
    place = torch.arange(9) if whole else torch.rand(9, dtype=torch.float64) * 300 - 150
    at = Positions.of(place)
    q = torch.randn(2, 3, 9, size[0], dtype=torch.float64)
    k, v = (torch.randn(2, kv_heads, 9, size[0], dtype=torch.float64) for _ in range(2))
    kernel, keys = bind("reference", encoding, scale=0.3, need_weights=True), Keys(k, v, at)
    out, weights = encoding.attend(q, at, keys, mask, kernel)
    plain, expected_weights = kernel(encoding, q, at, keys, mask)
    assert weights is not None and expected_weights is not None
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=0)
    v = v.repeat_interleave(3 // kv_heads, 1)
    expected = written_out(weights, v, place.double(), place.double(), encoding)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(out, plain)
    # The scalar formula gives the same result for a single value.
    for channel in range(size[0]):
        actual = sum(
            weights[0, 1, 4, j].item()
            * encoding.formula_value(v[0, 1, j].tolist(), place[4].item(), place[j].item(), channel)
            for j in range(9)
        )
        assert actual == pytest.approx(out[0, 1, 4, channel].item(), abs=1e-11)


def test_the_kernel_sees_turned_values() -> None:
    encoding, calls = RotaryValues(4, layout="interleaved"), {}

    def kernel(encoding, q, at, keys, mask, *, scale, dropout, need_weights):
        calls["v"] = keys.v
        return keys.v[:, :, -1:].expand_as(q), None

    v = torch.tensor([1.0, 0, 1, 0]).expand(1, 1, 3, 4).double()
    at = Positions.count(3)
    bound = replace(bind("sdpa", encoding, scale=1.0), kernel=kernel)
    out, _ = encoding.attend(v, at, Keys(v, v, at), masks.causal(), bound)
    expected = [[math.cos(p), math.sin(p), math.cos(p / 100), math.sin(p / 100)] for p in range(3)]
    torch.testing.assert_close(calls["v"][0, 0], torch.tensor(expected, dtype=torch.float64))
    # The kernel returns the value at position 2; rotated back, it is relative to 0, 1 and 2.
    expected = [[math.cos(p), math.sin(p), math.cos(p / 100), math.sin(p / 100)] for p in (2, 1, 0)]
    torch.testing.assert_close(out[0, 0], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
@pytest.mark.parametrize("bias", [False, True])
def test_with_rotary_it_is_roper(kernel: str, bias: bool) -> None:
    rotary, values = Rotary(8), RotaryValues(8, partial=0.5)
    encoding: Compose = rotary + values + ALiBi(3) if bias else rotary + values
    layer = Attention(24, 3, head_dim=8, encoding=encoding, kernel=kernel).double()
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    actual = layer(x, mask=masks.causal())
    q, k, v = (layer.split(project(x), 3) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    place = torch.arange(9, dtype=torch.float64)
    turn = rotation(angles(place, 8, 1e4), "half")
    q, k = (torch.einsum("tij,bhtj->bhti", turn, x) for x in (q, k))
    logits = q @ k.transpose(-1, -2) * 8**-0.5
    if bias:
        slopes = torch.tensor(ALiBi(3).slopes, dtype=torch.float64)[:, None, None]
        logits = logits - slopes * (place[:, None] - place).abs()
    weights = logits.masked_fill(~torch.ones(9, 9).tril().bool(), -torch.inf).softmax(-1)
    expected = layer.o_proj(written_out(weights, v, place, place, values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_two_rules_of_attention_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="at most one encoding may replace the attention rule"):
        RotaryValues(4) + RotaryValues(4, base=7.0)
