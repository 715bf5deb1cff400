"""Inkling's bias, which every asking token chooses for itself."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Attention, Keys, Positions, masks
from posenc.cache import GrowingCache
from posenc.encodings.inkling import Inkling
from posenc.kernels import bind


def made(dim: int = 6, heads: int = 3, max_distance: int = 4, rank: int = 2) -> Inkling:
    return Inkling(dim, heads, max_distance=max_distance, rank=rank, std=1.0).double()


def chosen(encoding: Inkling, x: Tensor, m: Tensor, n: Tensor) -> Tensor:
    """The bias [B, H, T, S] of tokens x [B, T, dim], in scalars."""
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
    """What comes out for queries and keys of zeros."""
    zeros = [x.new_zeros(x.shape[0], encoding.heads, n, 4) for n in (at.tokens, keys_at.tokens)]
    own = encoding.remember(x, at)
    keys = Keys(zeros[1], zeros[1], keys_at, {}, own)
    return bind("reference", encoding, scale=0.25).logits(encoding, zeros[0], at, keys, masks.bidirectional())


CASES = {
    "in a row": (torch.arange(9), torch.arange(9)),
    "elsewhere": (torch.tensor([3, 0, 50]), torch.tensor([1, 4, 2, 49, 46, 47])),
    "fractional": (torch.tensor([0.5, 2.25, 9.0]), torch.tensor([0.0, 1.75, 2.5, 5.25, 5.0, 9.5])),
}


@pytest.mark.parametrize("case", CASES)
def test_a_token_mixes_the_profiles_of_the_past(case: str) -> None:
    m, n = CASES[case]
    encoding, x = made(), torch.randn(2, len(m), 6, dtype=torch.float64)
    got = logits(encoding, x, Positions.of(m), Positions.of(n))
    torch.testing.assert_close(got, chosen(encoding, x, m, n), rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    heads=st.integers(1, 4),
    max_distance=st.integers(1, 9),
    rank=st.integers(1, 5),
    places=st.lists(st.integers(0, 60).map(lambda quarter: quarter / 4), min_size=1, max_size=5),
)
def test_any_configuration_gives_the_same(heads: int, max_distance: int, rank: int, places: list[float]) -> None:
    encoding, at = made(5, heads, max_distance, rank), torch.tensor(places)
    x = torch.randn(1, len(places), 5, dtype=torch.float64)
    got = logits(encoding, x, Positions.of(at), Positions.of(at))
    torch.testing.assert_close(got, chosen(encoding, x, at, at), rtol=0, atol=1e-12)


def test_there_is_no_bias_towards_the_future_and_past_max_distance() -> None:
    x = torch.randn(1, 1, 6, dtype=torch.float64)
    place = torch.tensor([10]), torch.tensor([11, 10, 7, 6, 0])
    bias = logits(made(), x, *map(Positions.of, place))[0, :, 0]
    assert (bias[:, [0, 3, 4]] == 0).all() and (bias[:, 1:3] != 0).all()


def test_the_bias_fades_between_the_last_profile_column_and_max_distance() -> None:
    x = torch.randn(1, 1, 6, dtype=torch.float64)
    place = torch.tensor([10.0]), torch.tensor([7.0, 6.5, 6.25, 6.0])
    bias = logits(made(), x, *map(Positions.of, place))[0, :, 0]
    torch.testing.assert_close(bias, bias[:, :1] * torch.tensor([1, 0.5, 0.25, 0]).double(), rtol=0, atol=1e-12)


def test_the_bias_is_added_to_scaled_logits() -> None:
    encoding, x, at = made(), torch.randn(1, 5, 6, dtype=torch.float64), Positions.count(5)
    q = torch.randn(1, 3, 5, 4, dtype=torch.float64)
    keys = Keys(q, q, at, {}, encoding.remember(x, at))
    kernel = bind("reference", encoding, scale=0.25)
    expected = q @ q.transpose(-1, -2) * 0.25 + chosen(encoding, x, torch.arange(5), torch.arange(5))
    got = kernel.logits(encoding, q, at, keys, masks.bidirectional())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def attention(encoding: Inkling, kv_heads: int = 3) -> Attention:
    torch.manual_seed(3)
    return Attention(6, 3, head_dim=4, kv_heads=kv_heads, encoding=encoding).double()


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_the_asking_token_decides_also_in_cross_attention(kv_heads: int) -> None:
    encoding = made()
    layer = attention(encoding, kv_heads)
    x, other = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 7, 6, dtype=torch.float64)
    m, n = torch.tensor([4, 9, 6]), torch.arange(7)
    q = layer.split(layer.to_query(x), 3)
    k, v = (
        layer.split(to(other), kv_heads).repeat_interleave(3 // kv_heads, 1) for to in (layer.to_key, layer.to_value)
    )
    weights = (q @ k.transpose(-1, -2) / 2 + chosen(encoding, x, m, n)).softmax(-1)
    expected = layer.to_output((weights @ v).transpose(1, 2).flatten(2))
    got = layer(x, other, positions=m, key_positions=n)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_a_token_decoded_alone_asks_for_itself() -> None:
    layer, x = attention(made()), torch.randn(1, 6, 6, dtype=torch.float64)
    whole, cache = layer(x, mask=masks.causal()), GrowingCache()
    got = [layer(x[:, t : t + 1], positions=Positions.count(1, t), mask=masks.causal(), cache=cache) for t in range(6)]
    torch.testing.assert_close(torch.cat(got, 1), whole, rtol=0, atol=1e-12)


def test_the_bias_alone_cannot_be_asked_and_says_so() -> None:
    with pytest.raises(ValueError, match="reads what it remembers of tokens; use it in Attention"):
        made().bias(3, q=torch.zeros(1, 3, 3, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dim": 0}, "dim must be 1 or more, got 0"),
        ({"heads": 0}, "heads must be 1 or more, got 0"),
        ({"max_distance": 0}, "max_distance must be 1 or more, got 0"),
        ({"rank": 2.5}, "rank must be a whole number, got 2.5"),
        ({"std": 0.0}, "std must be above 0, got 0.0"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Inkling(**{"dim": 8, "heads": 2} | options)


def test_it_learns_a_mixture_and_profiles_and_no_bias() -> None:
    assert [name for name, _ in made().named_parameters()] == ["profiles", "to_mixture.weight"]


def test_mixtures_of_half_precision_are_taken_in_single() -> None:
    encoding, at, x = made().bfloat16(), Positions.count(2), torch.randn(1, 2, 6).bfloat16()
    keys = Keys(torch.zeros(1, 3, 2, 4), torch.zeros(1, 3, 2, 4), at, {}, encoding.remember(x, at))
    assert encoding.mixture(torch.zeros(1, 3, 2, 4), keys).dtype == torch.float32


def test_other_tokens_and_heads_than_it_was_built_for_are_refused() -> None:
    encoding, at = made(), Positions.count(2)
    with pytest.raises(ValueError, match="built for embeddings of 6 channels, got 7; build it with dim=7"):
        encoding.remember(torch.zeros(1, 2, 7), at)
    q = torch.zeros(1, 2, 2, 4)
    with pytest.raises(ValueError, match="built for 3 heads, got 2; build it with heads=2"):
        encoding.biases(q, at, Keys(q, q, at))
