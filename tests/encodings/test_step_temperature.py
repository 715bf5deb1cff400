"""The published step temperatures agree with their formulas and pinned numbers."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import Positions
from posenc.encodings.temperatures.step_temperature import FORMS, StepTemperature


def factors(encoding: StepTemperature, positions: list[float]) -> list[float]:
    """Return the query factors at these positions."""
    ids = torch.tensor(positions, dtype=torch.float64 if any(p % 1 or p < 0 for p in positions) else torch.int64)
    queries = torch.ones(1, 2, len(positions), 4, dtype=torch.float64)
    return encoding.query(queries, Positions.of(ids))[0, 1, :, 2].tolist()


PINNED_TEMPERATURES = {
    # 1 + 0.1 ln(1 + floor((p + 1) / 8192)): the first step is at position 8191, one before the multiple.
    "llama4": (8192, {0: 1, 8190: 1, 8191: 1.0693147, 8192: 1.0693147, 16383: 1.1098612, 1_048_575: 1.4859812}),
    # 1 + 0.1 ln(1 + floor(p / L))
    "ministral": (16384, {0: 1, 16383: 1, 16384: 1.0693147, 32767: 1.0693147, 32768: 1.1098612}),
    # 1 + 0.1 ln(max(1, (p + 1) / n_floor)): no steps.
    "inkling": (128_000, {0: 1, 127_999: 1, 255_999: 1.0693147, 191_999: 1.0405465, 1_279_999: 1.2302585}),
}


@pytest.mark.parametrize("form", FORMS)
def test_temperatures_are_the_pinned_ones(form: str) -> None:
    interval, temperatures = PINNED_TEMPERATURES[form]
    encoding = StepTemperature(interval=interval, form=form)
    assert factors(encoding, list(temperatures)) == pytest.approx(list(temperatures.values()), abs=5e-8)
    assert [encoding.temperature(p) for p in temperatures] == pytest.approx(list(temperatures.values()), abs=5e-8)


def published_temperature(form: str, p: int, interval: int, strength: float) -> float:
    with mpmath.workdps(40):
        if form == "llama4":
            return float(1 + mpmath.mpf(strength) * mpmath.log(1 + (p + 1) // interval))
        if form == "ministral":
            return float(1 + mpmath.mpf(strength) * mpmath.log(1 + p // interval))
        return float(1 + mpmath.mpf(strength) * mpmath.log(max(mpmath.mpf(1), mpmath.mpf(p + 1) / interval)))


@given(
    st.sampled_from(FORMS),
    st.integers(1, 200_000),
    st.floats(0, 5),
    st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
)
def test_any_interval_and_position_is_the_published_formula(
    form: str, interval: int, strength: float, positions: list[int]
) -> None:
    # These positions lie exactly at the edges, where a rounded quotient would land on the wrong side.
    starts = [p // interval * interval for p in positions]
    positions = [*positions, *starts, *(p + interval - 1 for p in starts)]
    expected = [published_temperature(form, p, interval, strength) for p in positions]
    encoding = StepTemperature(interval=interval, strength=strength, form=form)
    assert factors(encoding, positions) == pytest.approx(expected, rel=1e-12)
    assert [encoding.temperature(p) for p in positions] == pytest.approx(expected, rel=1e-12)


def test_llama_steps_one_position_before_ministral_and_inkling_does_not_step() -> None:
    llama, ministral, inkling = (StepTemperature(interval=4, form=form) for form in FORMS)
    steps = [[round(tau, 6) for tau in factors(encoding, list(range(9)))] for encoding in (llama, ministral, inkling)]
    step_1, step_2 = round(1 + 0.1 * math.log(2), 6), round(1 + 0.1 * math.log(3), 6)
    assert steps[0] == [1, 1, 1, step_1, step_1, step_1, step_1, step_2, step_2]
    assert steps[1] == [1, 1, 1, 1, step_1, step_1, step_1, step_1, step_2]
    assert steps[2][:4] == [1, 1, 1, 1] and steps[2][7] == step_1 and len(set(steps[2][3:])) == 6


def test_fractional_and_negative_positions_have_a_temperature() -> None:
    actual = factors(StepTemperature(interval=2, strength=1.0), [-7.5, 0.5, 1.5, 3.5])
    assert actual == pytest.approx([1, 1, 1 + math.log(2), 1 + math.log(3)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_query_is_rounded_once(dtype: torch.dtype) -> None:
    encoding, at, q = StepTemperature(interval=3), Positions.count(40), torch.randn(1, 2, 40, 4).to(dtype)
    tau = torch.tensor([encoding.temperature(p) for p in range(40)], dtype=torch.float64)
    assert encoding.query(q, at).equal((q.double() * tau[:, None]).float().to(dtype))


def test_logits_are_multiplied_and_keys_are_not() -> None:
    encoding = StepTemperature(interval=1, strength=1.0, form="inkling")
    assert encoding.formula_logit([1.0, 2.0], [3.0, 1.0], 9, 5, 0, 0.1) == pytest.approx(0.5 * (1 + math.log(10)))
    k = torch.randn(1, 1, 4, 4)
    assert encoding.key(k, Positions.count(4)).equal(k)
