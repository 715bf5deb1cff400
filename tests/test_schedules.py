"""Rotary frequency schedules, against numbers pinned from other libraries and formulas written out here."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import Shape, build
from posenc.encodings.rotary import Rotary
from posenc.schedules import NTK, SCHEDULES, Linear, Llama3, Schedule, YaRN


def spectrum(schedule: Schedule, *, base: float = 1e4, width: int = 128) -> tuple[list[float], float]:
    plain = torch.tensor([base ** (-2 * k / width) for k in range(width // 2)], dtype=torch.float64)
    frequencies, temperature = schedule(plain, base=base, width=width)
    return frequencies.tolist(), temperature


def plain(base: float = 1e4, width: int = 128) -> list[float]:
    return [base ** (-2 * k / width) for k in range(width // 2)]


def test_yarn_has_the_pinned_frequencies_ramp_and_temperature() -> None:
    schedule = YaRN(8, trained_length=4096)
    got, temperature = spectrum(schedule)
    pinned = {0: 1.0, 28: 1.299512e-02, 36: 2.595421e-03, 63: 1.443477e-05}
    assert {k: got[k] for k in pinned} == pytest.approx(pinned, rel=5e-7)
    assert schedule.ramp(1e4, 128) == (20, 46)
    assert temperature == pytest.approx(1.207944, abs=5e-7)


def test_yarn_without_truncation_ramps_between_the_real_pair_indices() -> None:
    schedule = YaRN(8, trained_length=4096, truncate=False)
    low, high = (128 * math.log(4096 / (2 * math.pi * n)) / (2 * math.log(1e4)) for n in (32, 1))
    assert schedule.ramp(1e4, 128) == pytest.approx((low, high), rel=1e-14)
    assert 20 < low < 21 and 45 < high < 46
    expected = []
    for k, f in enumerate(plain()):
        keep = 1 - min(max((k - low) / (high - low), 0), 1)
        expected.append(f * keep + f / 8 * (1 - keep))
    assert spectrum(schedule)[0] == pytest.approx(expected, rel=1e-13)
    assert spectrum(schedule)[0] != spectrum(YaRN(8, trained_length=4096))[0]


def test_yarn_keeps_fast_pairs_and_divides_slow_ones_and_not_the_other_way_round() -> None:
    got, _ = spectrum(YaRN(8, trained_length=4096))
    assert got[:21] == pytest.approx(plain()[:21], rel=1e-14)
    assert got[46:] == pytest.approx([f / 8 for f in plain()[46:]], rel=1e-14)
    kept = [a / b for a, b in zip(got, plain(), strict=True)]
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize("length", [64, 128, 200])
def test_a_trained_length_below_201_leaves_no_pair_that_yarn_keeps_whole_but_the_first(length: int) -> None:
    # The fastest pair turns length / 2 pi times, which is below beta_fast = 32 for fewer than 201 tokens.
    got, _ = spectrum(YaRN(4, trained_length=length))
    assert all(a < b for a, b in zip(got[1:], plain()[1:], strict=True))
    assert spectrum(YaRN(4, trained_length=8192))[0][1] == plain()[1]
    llama, _ = spectrum(Llama3(4, trained_length=length))
    assert llama[1] == plain()[1]


@pytest.mark.parametrize(("base", "length"), [(10.0, 32_768), (1e4, 1), (2.0, 5)])
def test_a_ramp_that_lies_outside_the_pairs_does_not_run_backwards(base: float, length: int) -> None:
    schedule = YaRN(4, trained_length=length)
    low, high = schedule.ramp(base, 16)
    assert 0 <= low < high
    got, _ = spectrum(schedule, base=base, width=16)
    turns = [length * f / (2 * math.pi) for f in plain(base, 16)]
    if min(turns) > 32:
        assert got == pytest.approx(plain(base, 16), rel=1e-14)
    else:
        assert got[1:] == pytest.approx([f / 4 for f in plain(base, 16)[1:]], rel=1e-14)


@pytest.mark.parametrize(("factor", "square"), [(16, 1.631), (1, 1.0)])
def test_yarn_warms_logits_by_the_square_of_its_temperature(factor: float, square: float) -> None:
    assert YaRN(factor, trained_length=4096).temperature ** 2 == pytest.approx(square, abs=5e-4)
    assert YaRN(factor, trained_length=4096, attention_factor=1.5).temperature == 1.5


def test_llama3_has_the_pinned_frequencies() -> None:
    got, temperature = spectrum(Llama3(8, trained_length=8192), base=5e5)
    pinned = {28: 3.211446e-03, 32: 5.248460e-04, 36: 7.784655e-05, 63: 3.068926e-07}
    assert {k: got[k] for k in pinned} == pytest.approx(pinned, rel=5e-7)
    assert temperature == 1.0


@pytest.mark.parametrize(("factor", "length"), [(8, 8192), (32, 8192), (2, 300)])
def test_llama3_is_by_parts_with_a_ramp_in_turns_from_1_to_4(factor: float, length: int) -> None:
    expected = []
    for f in plain(5e5):
        turns = length * f / (2 * math.pi)
        keep = min(max((turns - 1) / (4 - 1), 0), 1)
        expected.append((1 - keep) * f / factor + keep * f)
    assert spectrum(Llama3(factor, trained_length=length), base=5e5)[0] == pytest.approx(expected, rel=1e-13)


def test_llama3_with_equal_bounds_is_a_step() -> None:
    got, _ = spectrum(Llama3(16, trained_length=8192, low=1.0, high=1.0), base=5e5)
    expected = [f if 8192 * f / (2 * math.pi) >= 1 else f / 16 for f in plain(5e5)]
    assert got == pytest.approx(expected, rel=1e-14)


@given(width=st.integers(2, 64).map(lambda pairs: 2 * pairs), base=st.floats(2, 1e7), factor=st.floats(1, 100))
def test_ntk_keeps_the_first_pair_and_divides_the_last_by_exactly_the_factor(
    width: int, base: float, factor: float
) -> None:
    got, temperature = spectrum(NTK(factor), base=base, width=width)
    assert got[0] == 1.0 and temperature == 1.0
    assert got[-1] == pytest.approx(plain(base, width)[-1] / factor, rel=1e-12)
    larger = base * factor ** (width / (width - 2))
    assert got == pytest.approx([larger ** (-2 * k / width) for k in range(width // 2)], rel=1e-10)


def test_ntk_needs_two_pairs() -> None:
    with pytest.raises(
        ValueError,
        match="ntk keeps the fastest pair and stretches the slowest, which takes two pairs; got a rotary width of 2",
    ):
        Rotary(2, schedule=NTK(2))


def test_linear_divides_every_frequency_as_if_positions_were_squeezed() -> None:
    got, temperature = spectrum(Linear(4))
    assert got == [f / 4 for f in plain()] and temperature == 1.0
    q = torch.randn(1, 1, 5, 8, dtype=torch.float64)
    squeezed = Rotary(8)(q, q, positions=torch.arange(5, dtype=torch.float64) / 4)[0]
    torch.testing.assert_close(Rotary(8, schedule=Linear(4))(q, q)[0], squeezed, rtol=0, atol=1e-14)


EVERY = [
    Linear(3),
    NTK(3),
    YaRN(3, trained_length=512),
    YaRN(3, trained_length=512, truncate=False),
    Llama3(3, trained_length=512),
]


@pytest.mark.parametrize("schedule", EVERY, ids=repr)
@given(width=st.integers(2, 40).map(lambda pairs: 2 * pairs), base=st.floats(2, 1e7))
def test_the_scalar_formula_agrees_with_the_schedule(schedule: Schedule, width: int, base: float) -> None:
    frequencies, temperature = schedule.formula(plain(base, width), base=base, width=width)
    got, warm = spectrum(schedule, base=base, width=width)
    assert got == pytest.approx(frequencies, rel=1e-9) and warm == temperature


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_factor_of_one_changes_nothing(name: str) -> None:
    schedule = SCHEDULES[name](factor=1).with_trained_length(4096)
    assert spectrum(schedule)[0] == pytest.approx(plain(), rel=1e-14) and spectrum(schedule)[1] == 1.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_frequency_grows_and_none_is_divided_by_more_than_the_factor(name: str) -> None:
    schedule = SCHEDULES[name](factor=5).with_trained_length(1024)
    for got, before in zip(spectrum(schedule)[0], plain(), strict=True):
        assert before / 5 * (1 - 1e-12) <= got <= before * (1 + 1e-12)


@pytest.mark.parametrize("name", ["yarn", "llama3"])
def test_the_trained_length_is_filled_in_from_the_model(name: str) -> None:
    shape = Shape.of(dim=64, heads=4, max_len=777)
    encoding = build(f"rotary(schedule={name}(factor=2))", shape)
    assert isinstance(encoding, Rotary) and encoding.schedule is not None
    assert dataclasses.asdict(encoding.schedule)["trained_length"] == 777
    given_one = build(f"rotary(schedule={name}(factor=2, trained_length=99))", shape)
    assert isinstance(given_one, Rotary) and given_one.schedule == SCHEDULES[name](factor=2).with_trained_length(99)


def test_schedules_without_a_length_take_none() -> None:
    for schedule in (Linear(2), NTK(2)):
        assert schedule.with_trained_length(5) is schedule


@pytest.mark.parametrize("name", ["yarn", "llama3"])
def test_an_unknown_trained_length_is_asked_for(name: str) -> None:
    words = rf"{name} compares wavelengths with the trained length; give {name}\(..., trained_length=4096\)"
    with pytest.raises(ValueError, match=words):
        spectrum(SCHEDULES[name](factor=2))
    with pytest.raises(ValueError, match=words):
        SCHEDULES[name](factor=2).formula(plain(), base=1e4, width=128)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("factor", [0.5, 0, -1, math.nan])
def test_a_factor_below_one_is_refused(name: str, factor: float) -> None:
    with pytest.raises(
        ValueError, match=rf"{name}: factor must be 1 or more \(target length / trained length\), got {factor}"
    ):
        SCHEDULES[name](factor=factor)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: YaRN(2, trained_length=0), "yarn: trained_length must be 1 or more tokens, got 0"),
        (lambda: Llama3(2, trained_length=-5), "llama3: trained_length must be 1 or more tokens, got -5"),
        (lambda: YaRN(2, beta_fast=1, beta_slow=2), r"yarn: needs beta_fast >= beta_slow > 0 \(turns\), got 1 and 2"),
        (lambda: YaRN(2, beta_slow=0), "yarn: needs beta_fast >= beta_slow > 0"),
        (lambda: YaRN(2, attention_factor=0.0), "yarn: attention_factor must be above 0, got 0.0"),
        (lambda: Llama3(2, low=5.0), r"llama3: needs high >= low > 0 \(turns\), got low=5.0 and high=4.0"),
        (lambda: Llama3(2, low=0.0), "llama3: needs high >= low > 0"),
    ],
)
def test_impossible_options_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_schedule_prints_as_it_is_written_and_cannot_be_changed() -> None:
    assert repr(Linear(2)) == "linear(factor=2)" and repr(NTK(1.5)) == "ntk(factor=1.5)"
    assert repr(YaRN(4, truncate=False)) == "yarn(factor=4, truncate=False)"
    assert repr(Llama3(8, trained_length=8192)) == "llama3(factor=8, trained_length=8192)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Linear(2).factor = 3  # type: ignore[misc]
