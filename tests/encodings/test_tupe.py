"""TUPE agrees with its equations evaluated on explicit vectors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Keys, Positions, build, masks
from posenc.encoding.base import Shape
from posenc.encoding.biases import total
from posenc.encodings.content_biases.tupe import TUPE
from posenc.kernels import bind


def build_tupe(dim: int = 5, heads: int = 3, head_dim: int = 4, max_len: int = 12, **options) -> TUPE:
    encoding = TUPE(dim, heads, head_dim, max_len, **{"std": 1.0} | options).double()
    if encoding.first_key is not None:
        torch.nn.init.normal_(encoding.first_key)
    return encoding


def position_terms(encoding: TUPE, m: list[float], n: list[float]) -> Tensor:
    """Return dot products [H, T, S] of separately projected positions over sqrt(2 d)."""
    table = encoding.table.tolist()

    def vector(projection: torch.nn.Linear, place: float, head: int) -> list[float]:
        low = math.floor(place)
        high = min(low + 1, encoding.max_len - 1)
        position = [a + (place - low) * (b - a) for a, b in zip(table[low], table[high], strict=True)]
        rows = projection.weight.tolist()[head * encoding.head_dim : (head + 1) * encoding.head_dim]
        return [sum(w * x for w, x in zip(row, position, strict=True)) for row in rows]

    out = torch.zeros(encoding.heads, len(m), len(n), dtype=torch.float64)
    for head in range(encoding.heads):
        for i, x in enumerate(m):
            for j, y in enumerate(n):
                if encoding.first_key is not None and (x == 0 or y == 0):
                    out[head, i, j] = 0.0 if x == 0 else encoding.first_key[head].item()
                    continue
                pair = zip(vector(encoding.to_query, x, head), vector(encoding.to_key, y, head), strict=True)
                out[head, i, j] = sum(a * b for a, b in pair) / math.sqrt(2 * encoding.head_dim)
    return out


CASES = {
    "in a row": ([*range(9)], [*range(9)]),
    "elsewhere": ([3, 0, 11], [1, 4, 0, 11, 2]),
    "fractional": ([0.5, 2.25, 11.0, 0.0], [0.0, 1.75, 10.5, 3.125]),
}


@pytest.mark.parametrize("untie_first", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_positions_are_compared_by_projections_of_their_own(case: str, untie_first: bool) -> None:
    m, n = CASES[case]
    encoding = build_tupe(untie_first=untie_first)
    q = torch.randn(2, 3, len(m), 4, dtype=torch.float64)
    k = torch.randn(2, 3, len(n), 4, dtype=torch.float64)
    at, keys_at = Positions.of(torch.tensor(m)), Positions.of(torch.tensor(n))
    out = bind("reference", encoding, scale=8**-0.5).logits(encoding, q, at, Keys(k, k, keys_at), masks.bidirectional())
    expected = q @ k.transpose(-1, -2) / math.sqrt(2 * 4) + position_terms(encoding, m, n)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(1, 6),
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    untie_first=st.booleans(),
    places=st.lists(st.floats(0, 6), min_size=1, max_size=4),
)
def test_any_configuration_gives_the_same(dim, heads, head_dim, untie_first, places) -> None:
    encoding = build_tupe(dim, heads, head_dim, 7, untie_first=untie_first)
    at = torch.tensor(places, dtype=torch.float64)
    q = torch.zeros(1, heads, len(places), head_dim, dtype=torch.float64)
    torch.testing.assert_close(encoding.bias(at, q=q)[0], position_terms(encoding, places, places), rtol=0, atol=1e-11)


def test_what_a_first_query_gets_is_dropped_by_the_softmax() -> None:
    """The paper's theta_1 is the same for every key, so it changes no weight."""
    encoding = build_tupe()
    q, k = (torch.randn(1, 3, 5, 4, dtype=torch.float64) for _ in range(2))
    logits = q @ k.transpose(-1, -2) + encoding.bias(5, q=q)
    theta = torch.tensor([-3.0, 0.5, 8.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close((logits[:, :, 0] + theta).softmax(-1), logits[:, :, 0].softmax(-1), rtol=0, atol=1e-12)


def test_the_first_token_is_the_one_at_position_zero_wherever_it_stands() -> None:
    encoding = build_tupe()
    at = Positions.packed([3, 2])
    bias = encoding.bias(at, q=torch.zeros(1, 3, 5, 4, dtype=torch.float64), mask=masks.bidirectional())[0]
    for query, key in ((1, 0), (2, 0), (4, 3)):
        torch.testing.assert_close(bias[:, query, key], encoding.first_key)
    assert not bias[:, 0, :3].any() and not bias[:, 3, 3:].any()
    assert bias[:, 1, 3].isneginf().all()


def test_the_variant_with_relative_positions_is_a_sum() -> None:
    encoding = build("tupe + t5_bias(std=1.0)", Shape(dim=8, heads=2, head_dim=4, max_len=9))
    q = torch.zeros(1, 2, 9, 4)
    expected = encoding.parts[0].bias(9, q=q) + encoding.parts[1].bias(9)
    torch.testing.assert_close(encoding.bias(9, q=q), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (
            torch.tensor([0, 12]),
            r"position 12 is past the 12 rows of tupe\(max_len=12, std=1.0\); build it with max_len=13",
        ),
        (
            torch.tensor([0.0, 11.25]),
            r"position 11.25 is past the 12 rows of tupe\(max_len=12, std=1.0\); build .* max_len=13",
        ),
        (
            torch.tensor([0.0, -0.5]),
            r"tupe\(max_len=12, std=1.0\) starts at position 0, got position -0.5; shift the positions",
        ),
    ],
)
def test_positions_out_of_the_table_are_refused(places: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_tupe().bias(places, q=torch.zeros(1, 3, 2, 4).double())
    with pytest.raises(ValueError, match="max_len=13"):
        build_tupe().bias(13, q=torch.zeros(1, 3, 13, 4).double())


@pytest.mark.slow
def test_inside_a_compiled_graph_they_come_out_as_nan() -> None:
    encoding, q = build_tupe(), torch.zeros(1, 3, 2, 4, dtype=torch.float64)

    def two_biases(places: Tensor) -> Tensor:
        at = Positions.of(places)
        return total(encoding.biases(q, at, Keys(q, q, at)), torch.float64)

    run = torch.compile(two_biases, backend="eager", fullgraph=True)
    actual = run(torch.tensor([11, 12]))
    assert actual[0, :, 0, 0].isfinite().all() and actual[0, :, 1].isnan().all() and actual[0, :, 0, 1].isnan().all()
    torch._dynamo.reset()
