"""T5's relative bias agrees with integer buckets and a table by bucket and head."""

import functools
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.encodings.distance_biases.t5_bias import T5Bias


@functools.cache
def one_side(distance: Fraction | int, side: int, max_distance: int) -> int:
    """Return the bucket of a nonnegative distance, without logarithms.

    e + floor(ln(d/e)/ln(D/e) (N - e)) is at least e + s exactly when (d/e)^(N-e) >= (D/e)^s.
    """
    exact = side // 2
    if distance < exact:
        return int(distance)
    power = side - exact
    past = [s for s in range(power) if Fraction(distance, exact) ** power >= Fraction(max_distance, exact) ** s]
    return exact + max(past)


def exact_bucket(delta: Fraction | int, buckets: int, max_distance: int, causal: bool) -> int:
    """Return the bucket of a signed distance, query minus key."""
    if causal:
        return one_side(max(delta, 0), buckets, max_distance)
    return one_side(abs(delta), buckets // 2, max_distance) + (buckets // 2 if delta < 0 else 0)


BIDIRECTIONAL = {-128: 15, -64: 14, -16: 10, -8: 8, -1: 1, 0: 0, 1: 17, 8: 24, 64: 30, 128: 31}
CAUSAL = {-127: 31, -64: 26, -20: 17, -16: 16, -8: 8, 0: 0, 1: 0, 5: 0, 500: 0}


@pytest.mark.parametrize(("causal", "buckets"), [(False, BIDIRECTIONAL), (True, CAUSAL)])
def test_buckets_are_the_pinned_ones(causal: bool, buckets: dict[int, int]) -> None:
    # The pinned values use key minus query.
    delta = torch.tensor([-relative for relative in buckets])
    assert T5Bias(2, causal=causal).bucket(delta).tolist() == list(buckets.values())


SIZES = [(32, 128), (32, 17), (64, 256), (8, 20), (16, 9), (12, 100), (20, 1000), (4, 50), (2, 2), (100, 3000)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), SIZES)
def test_every_whole_distance_falls_into_the_exact_bucket(buckets: int, max_distance: int, causal: bool) -> None:
    # The number of bidirectional buckets must be divisible by 4.
    buckets = buckets if causal else buckets + buckets % 4
    reach = min(5 * max_distance, 640)
    deltas = [*range(-reach, reach + 1), -5 * max_distance, 5 * max_distance, max_distance, max_distance - 1]
    actual = T5Bias(1, buckets=buckets, max_distance=max_distance, causal=causal).bucket(torch.tensor(deltas)).tolist()
    assert actual == [exact_bucket(delta, buckets, max_distance, causal) for delta in deltas]


@given(
    quarter=st.integers(1, 16),
    room=st.integers(1, 400),
    causal=st.booleans(),
    deltas=st.lists(st.integers(-2000, 2000), min_size=1, max_size=20),
)
def test_random_sizes_fall_into_the_exact_buckets(quarter: int, room: int, causal: bool, deltas: list[int]) -> None:
    buckets = 4 * quarter
    max_distance = buckets // 2 + room
    actual = T5Bias(1, buckets=buckets, max_distance=max_distance, causal=causal).bucket(torch.tensor(deltas)).tolist()
    assert actual == [exact_bucket(delta, buckets, max_distance, causal) for delta in deltas]


@given(
    quarter=st.integers(1, 8),
    room=st.integers(1, 200),
    causal=st.booleans(),
    eighths=st.lists(st.integers(-4000, 4000), min_size=1, max_size=20),
)
def test_a_fraction_falls_into_the_bucket_that_the_formula_gives_it(
    quarter: int, room: int, causal: bool, eighths: list[int]
) -> None:
    buckets = 4 * quarter
    max_distance = buckets // 2 + room
    deltas = torch.tensor(eighths, dtype=torch.float64) / 8
    actual = T5Bias(1, buckets=buckets, max_distance=max_distance, causal=causal).bucket(deltas).tolist()
    assert actual == [exact_bucket(Fraction(n, 8), buckets, max_distance, causal) for n in eighths]


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_is_the_table_read_by_bucket_and_head(causal: bool) -> None:
    encoding = T5Bias(3, buckets=8, max_distance=20, causal=causal, std=1.0).double()
    at, keys_at = torch.tensor([5, 40, 0]), torch.tensor([0, 6, 39, 41])
    actual = encoding.bias(at, keys_at)
    expected = [
        [[encoding.table[exact_bucket(int(m - n), 8, 20, causal), h].item() for n in keys_at] for m in at]
        for h in range(3)
    ]
    assert actual.shape == (1, 3, 3, 4) and actual[0].tolist() == expected
    square = [
        [[encoding.table[exact_bucket(m - n, 8, 20, causal), h].item() for n in range(9)] for m in range(9)]
        for h in range(3)
    ]
    assert encoding.bias(9)[0].tolist() == square


@pytest.mark.parametrize("causal", [True, False])
def test_the_scalar_formula_in_the_file_uses_the_exact_buckets(causal: bool) -> None:
    encoding = T5Bias(2, buckets=32, max_distance=128, causal=causal, std=1.0).double()
    for distance in [*range(-260, 261, 3), -128, 128, 127, 16, -16, 32, 64]:
        out = encoding.formula_logit([2.0], [3.0], float(distance), 0.0, 1, 0.5)
        assert out == pytest.approx(3.0 + encoding.table[exact_bucket(distance, 32, 128, causal), 1].item(), abs=1e-14)


def test_the_default_table_starts_as_no_position_at_all() -> None:
    assert not T5Bias(4).table.any()
    assert T5Bias(64, buckets=256, max_distance=1000, std=0.5).table.std().item() == pytest.approx(0.5, rel=0.05)


def test_gradients_count_how_often_a_bucket_was_read() -> None:
    encoding = T5Bias(1, buckets=4, max_distance=5).double()
    encoding.bias(7).sum().backward()
    counts = [0] * 4
    for m in range(7):
        for n in range(7):
            counts[exact_bucket(m - n, 4, 5, True)] += 1
    assert encoding.table.grad is not None and encoding.table.grad[:, 0].tolist() == counts


def test_the_bias_has_the_dtype_of_the_table_unless_asked() -> None:
    assert T5Bias(2).bfloat16().bias(3).dtype == torch.bfloat16
    assert T5Bias(2).bias(3, dtype=torch.float64).dtype == torch.float64


def test_gradients_of_many_distances_in_a_bucket_add_up_in_half_precision() -> None:
    bias = T5Bias(2, buckets=4, max_distance=8).bfloat16()
    bias.by_distance(torch.arange(3000)).float().sum().backward()
    assert bias.table.grad is not None and bias.table.grad[-1].tolist() == [2992, 2992]
