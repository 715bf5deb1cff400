"""Tests of Inkling's bias, which each query token chooses for itself."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Attention, Keys, Positions, masks
from posenc.encodings.content_biases.inkling import Inkling
from posenc.kernels import bind


def build_inkling(dim: int = 6, heads: int = 3, max_distance: int = 4, rank: int = 2) -> Inkling:
    return Inkling(dim, heads, max_distance=max_distance, rank=rank, std=1.0).double()


def expected_bias(encoding: Inkling, x: Tensor, m: Tensor, n: Tensor) -> Tensor:
    """Compute the bias [B, H, T, S] of tokens x [B, T, dim] with scalars."""
    mixture = encoding.to_mixture(x).tolist()
    profiles = [[*row, 0.0] for row in encoding.profiles.tolist()]
    out = torch.zeros(x.shape[0], encoding.heads, len(m), len(n), dtype=torch.float64)
    for b in range(x.shape[0]):
        for h in range(encoding.heads):
            for i, here in enumerate(m.tolist()):
                r = mixture[b][i][h * encoding.rank : (h + 1) * encoding.rank]
                for j, there in enumerate(n.tolist()):
                    distance = here - there
                    if 0 <= distance < encoding.max_distance:
                        low = math.floor(distance)
                        share = distance - low
                        out[b, h, i, j] = sum(
                            weight * ((1 - share) * profile[low] + share * profile[low + (share > 0)])
                            for weight, profile in zip(r, profiles, strict=True)
                        )
    return out


def logits(encoding: Inkling, x: Tensor, at: Positions, keys_at: Positions) -> Tensor:
    """Return the logits for zero queries and keys."""
    zeros = [x.new_zeros(x.shape[0], encoding.heads, n, 4) for n in (at.tokens, keys_at.tokens)]
    memo = encoding.remember(x, at)
    keys = Keys(zeros[1], zeros[1], keys_at, {}, memo)
    return bind("reference", encoding, scale=0.25).logits(encoding, zeros[0], at, keys, masks.bidirectional())


CASES = {
    "in a row": (torch.arange(9), torch.arange(9)),
    "elsewhere": (torch.tensor([3, 0, 50]), torch.tensor([1, 4, 2, 49, 46, 47])),
    "fractional": (torch.tensor([0.5, 2.25, 9.0]), torch.tensor([0.0, 1.75, 2.5, 5.25, 5.0, 9.5])),
}


@pytest.mark.parametrize("case", CASES)
def test_a_token_mixes_the_profiles_of_the_past(case: str) -> None:
    m, n = CASES[case]
    encoding, x = build_inkling(), torch.randn(2, len(m), 6, dtype=torch.float64)
    actual = logits(encoding, x, Positions.of(m), Positions.of(n))
    torch.testing.assert_close(actual, expected_bias(encoding, x, m, n), rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    heads=st.integers(1, 4),
    max_distance=st.integers(1, 9),
    rank=st.integers(1, 5),
    places=st.lists(st.integers(0, 60).map(lambda quarter: quarter / 4), min_size=1, max_size=5),
)
def test_any_configuration_gives_the_same(heads: int, max_distance: int, rank: int, places: list[float]) -> None:
    encoding, at = build_inkling(5, heads, max_distance, rank), torch.tensor(places)
    x = torch.randn(1, len(places), 5, dtype=torch.float64)
    actual = logits(encoding, x, Positions.of(at), Positions.of(at))
    torch.testing.assert_close(actual, expected_bias(encoding, x, at, at), rtol=0, atol=1e-12)


def attention(encoding: Inkling, kv_heads: int = 3) -> Attention:
    torch.manual_seed(3)
    return Attention(6, 3, head_dim=4, kv_heads=kv_heads, encoding=encoding).double()


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_the_asking_token_decides_also_in_cross_attention(kv_heads: int) -> None:
    encoding = build_inkling()
    layer = attention(encoding, kv_heads)
    x, other_x = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 7, 6, dtype=torch.float64)
    m, n = torch.tensor([4, 9, 6]), torch.arange(7)
    q = layer.split(layer.q_proj(x), 3)
    k, v = (layer.split(proj(other_x), kv_heads) for proj in (layer.k_proj, layer.v_proj))
    k, v = (heads.repeat_interleave(3 // kv_heads, 1) for heads in (k, v))
    weights = (q @ k.transpose(-1, -2) / 2 + expected_bias(encoding, x, m, n)).softmax(-1)
    expected = layer.o_proj((weights @ v).transpose(1, 2).flatten(2))
    actual = layer(x, other_x, positions=m, key_positions=n)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_the_bias_alone_cannot_be_asked_and_says_so() -> None:
    with pytest.raises(ValueError, match="reads what it remembers of tokens; use it in Attention"):
        build_inkling().bias(3, q=torch.zeros(1, 3, 3, 4))


def test_it_learns_a_mixture_and_profiles_and_no_bias() -> None:
    assert [name for name, _ in build_inkling().named_parameters()] == ["profiles", "to_mixture.weight"]


def test_mixtures_of_half_precision_are_taken_in_single() -> None:
    encoding, at, x = build_inkling().bfloat16(), Positions.count(2), torch.randn(1, 2, 6).bfloat16()
    keys = Keys(torch.zeros(1, 3, 2, 4), torch.zeros(1, 3, 2, 4), at, {}, encoding.remember(x, at))
    assert encoding.mixture(torch.zeros(1, 3, 2, 4), keys).dtype == torch.float32
