"""Sandwich agrees with mpmath and with inner products of sinusoidal embeddings."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.encodings.distance_biases.sandwich import Sandwich


def exact(distance: float, width: int, base: float, first: int = 0) -> float:
    """Return the sum of cosines in 40 digits."""
    with mpmath.workdps(40):
        angles = (mpmath.mpf(distance) / mpmath.mpf(base) ** (mpmath.mpf(2 * p) / width) for p in range(width // 2))
        return float(mpmath.fsum(mpmath.cos(a * mpmath.mpf(base) ** (-mpmath.mpf(2 * first) / width)) for a in angles))


def test_pinned_values() -> None:
    # The bias is H/(8 h) times the sum of 64 cosines, which is 64 at distance zero.
    bias = Sandwich(8).by_distance(torch.tensor([0, 1, 100, 10_000]))
    assert bias[:, 0].tolist() == pytest.approx([64 / h for h in range(1, 9)])
    assert bias[0].tolist() == pytest.approx([exact(d, 128, 1e4) for d in (0, 1, 100, 10_000)], rel=1e-12)
    assert bias[0, 1:].tolist() == pytest.approx([62.093684, 30.543455, -1.785202], abs=1e-6)
    assert Sandwich(12).by_distance(torch.tensor(0)).tolist() == pytest.approx([64 * 12 / 8 / h for h in range(1, 13)])


@given(
    heads=st.integers(1, 9),
    half=st.integers(1, 40),
    base=st.floats(2, 1e6),
    m=st.floats(-1e6, 1e6),
    n=st.floats(-1e6, 1e6),
)
def test_the_bias_is_the_compressed_sum_of_cosines(heads: int, half: int, base: float, m: float, n: float) -> None:
    encoding = Sandwich(heads, width=2 * half, base=base)
    places = [torch.tensor([p], dtype=torch.float64) for p in (m, n)]
    actual = encoding.bias(*places, dtype=torch.float64)[0, :, 0, 0].tolist()
    total = exact(m - n, 2 * half, base)
    for head, value in enumerate(actual):
        expected = total * heads / (8 * (head + 1))
        assert value == pytest.approx(expected, abs=1e-7 * heads)
        assert encoding.formula_logit([0.0], [0.0], m, n, head, 1.0) == pytest.approx(expected, abs=1e-7 * heads)


def test_the_sum_is_the_inner_product_of_sinusoidal_embeddings() -> None:
    embeddings = Sinusoidal(128)(torch.zeros(1, 50, 128, dtype=torch.float64))[0]
    torch.testing.assert_close(
        Sandwich(8).bias(50, dtype=torch.float64)[0, 0], embeddings @ embeddings.T, rtol=0, atol=1e-11
    )


def test_counting_cosines_from_one_as_the_papers_equation_does_slows_each_by_one_step() -> None:
    actual = Sandwich(8).by_distance(torch.tensor(100.0, dtype=torch.float64) * 10_000 ** (-2 / 128))[0].item()
    assert actual == pytest.approx(exact(100, 128, 1e4, first=1), rel=1e-12)
    assert actual - exact(100, 128, 1e4) == pytest.approx(0.137631, abs=1e-6)


def test_wavelengths_run_from_two_pi() -> None:
    wavelengths = Sandwich(2).wavelengths
    assert wavelengths[[0, -1]].tolist() == pytest.approx([2 * math.pi, 2 * math.pi * 1e4 ** (126 / 128)])
    assert wavelengths.numel() == 64
