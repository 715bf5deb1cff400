"""Proportional rotary encoding (p-RoPE) agrees with pinned numbers and mpmath."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc.encodings.rotations.proportional_rotary import ProportionalRotary
from posenc.encodings.rotations.rotary import Rotary
from posenc.schedules import Linear, YaRN

LAYOUTS = ["half", "interleaved"]
PLACES = [0.0, 1.0, 2.5, -7.0, 4095.0, 1_000_000.0]


def rotated(x: Tensor, places: list[float], *, pairs: int, base: float, layout: str) -> Tensor:
    """Rotate the first pairs of x [B, H, T, D] by 40-digit angles. The denominator is the head dimension."""
    d, out = x.shape[-1], x.double().clone()
    with mpmath.workdps(40):
        for k in range(pairs):
            first, second = (k, k + d // 2) if layout == "half" else (2 * k, 2 * k + 1)
            frequency = mpmath.mpf(base) ** (-mpmath.mpf(2 * k) / d)
            cos = torch.tensor([float(mpmath.cos(p * frequency)) for p in places], dtype=torch.float64)
            sin = torch.tensor([float(mpmath.sin(p * frequency)) for p in places], dtype=torch.float64)
            a, b = x[..., first].double(), x[..., second].double()
            out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def test_the_pinned_frequencies_of_gemma_4() -> None:
    actual = ProportionalRotary(128, partial=0.25, base=1e6).frequencies
    assert actual.shape == (64,) and float(actual[10]) == pytest.approx(1.154782e-01, rel=5e-7)
    assert torch.equal(actual[16:], torch.zeros(48, dtype=torch.float64)) and float(actual[15]) > 0
    assert actual[:16].tolist() == pytest.approx([1e6 ** (-2 * k / 128) for k in range(16)], rel=1e-14)
    assert int(ProportionalRotary(256, partial=0.5).frequencies.count_nonzero()) == 64


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("d", "share", "pairs"), [(16, 0.25, 2), (16, 0.3, 2), (6, 0.67, 2), (8, 1.0, 4), (4, 0.1, 1)])
def test_the_fast_pairs_are_turned_and_the_others_pass(layout: str, d: int, share: float, pairs: int) -> None:
    encoding = ProportionalRotary(d, partial=share, base=100.0, layout=layout)
    q, k = torch.randn(2, 3, 6, d, dtype=torch.float64), torch.randn(2, 1, 6, d, dtype=torch.float64)
    sides = encoding(q, k, positions=torch.tensor(PLACES, dtype=torch.float64))
    for actual, x in zip(sides, (q, k), strict=True):
        torch.testing.assert_close(
            actual, rotated(x, PLACES, pairs=pairs, base=100.0, layout=layout), rtol=0, atol=1e-8
        )
    still = [c for k in range(pairs, d // 2) for c in ((k, k + d // 2) if layout == "half" else (2 * k, 2 * k + 1))]
    assert torch.equal(sides[0][..., still], q[..., still])


@given(
    pairs=st.integers(1, 12),
    partial=st.floats(0.01, 1),
    base=st.floats(1.01, 1e8),
    layout=st.sampled_from(LAYOUTS),
    p=st.floats(-1e5, 1e5),
)
def test_any_share_follows_the_paper(pairs: int, partial: float, base: float, layout: str, p: float) -> None:
    d, turning = 2 * pairs, max(math.floor(pairs * partial + 1e-9), 1)
    q = torch.randn(1, 1, 1, d, dtype=torch.float64)
    actual, _ = ProportionalRotary(d, partial=partial, base=base, layout=layout)(
        q, q, positions=torch.tensor([p], dtype=torch.float64)
    )
    torch.testing.assert_close(actual, rotated(q, [p], pairs=turning, base=base, layout=layout), rtol=0, atol=1e-9)


def test_a_share_of_one_is_rotary_and_a_smaller_one_is_not_partial_rotary() -> None:
    q = torch.randn(1, 2, 9, 16)
    torch.testing.assert_close(ProportionalRotary(16, partial=1.0)(q, q)[0], Rotary(16)(q, q)[0], rtol=0, atol=0)
    proportional, partial = ProportionalRotary(16, partial=0.5), Rotary(16, partial=0.5)
    assert (proportional(q, q)[0] - partial(q, q)[0]).abs().max() > 0.1
    # Both rotate equally many pairs, but partial rotary spreads a full spectrum over them and p-RoPE truncates it.
    assert int(proportional.frequencies.count_nonzero()) == len(partial.frequencies) == 4
    assert float(partial.frequencies[3]) == pytest.approx(1e-3) and float(proportional.frequencies[3]) > 0.03


def test_the_factor_of_gemma_4_is_a_linear_schedule() -> None:
    plain, eighth = (ProportionalRotary(128, base=1e6, schedule=s).frequencies for s in (None, Linear(8)))
    torch.testing.assert_close(eighth, plain / 8, rtol=1e-15, atol=0)


def test_a_schedule_sees_the_whole_head_and_its_temperature_warms_all_of_it() -> None:
    schedule = YaRN(4, trained_length=512)
    encoding = ProportionalRotary(32, partial=0.5, schedule=schedule)
    assert torch.equal(encoding.frequencies[:8], Rotary(32, schedule=schedule).frequencies[:8])
    q = torch.randn(1, 1, 3, 32, dtype=torch.float64)
    actual, _ = encoding(q, q)
    torch.testing.assert_close(actual[..., 8:16], q[..., 8:16] * schedule.temperature, rtol=1e-14, atol=0)


def test_pairs_that_stand_still_have_no_end_to_their_wavelength() -> None:
    waves = ProportionalRotary(8, partial=0.5, base=100.0).wavelengths
    assert waves[:2].tolist() == pytest.approx([2 * math.pi, 2 * math.pi * 10**0.5]) and bool(waves[2:].isinf().all())
    longest = ProportionalRotary(128, base=1e6).wavelengths[15]
    assert float(longest) == pytest.approx(2 * math.pi * 1e6 ** (30 / 128)) == pytest.approx(160, abs=1)
