"""Rotary frequency schedules agree with pinned numbers and the papers' formulas in 30 digits."""

import dataclasses
import math

import mpmath
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf

from posenc import Positions, Shape, build
from posenc.catalogue import parse
from posenc.checks import is_number
from posenc.encodings.rotations.multimodal_rotary import MultimodalRotary
from posenc.encodings.rotations.proportional_rotary import ProportionalRotary
from posenc.encodings.rotations.rotary import Rotary
from posenc.schedules import (
    NTK,
    SCHEDULES,
    Clipped,
    DynamicLinear,
    DynamicNTK,
    DynamicYaRN,
    Linear,
    Llama3,
    LongRoPE,
    NTKByParts,
    NTKFixed,
    NTKMixed,
    PartNTK,
    Resonance,
    Schedule,
    YaRN,
)
from posenc.schedules.yarn import MSCALE_RULES, RAMPS


def plain(base: float = 1e4, width: int = 128) -> list[float]:
    return [base ** (-2 * k / width) for k in range(width // 2)]


def spectrum(
    schedule: Schedule, *, base: float = 1e4, width: int = 128, horizon: float | None = None
) -> tuple[list[float], float]:
    """Return one sequence's frequencies and temperature. The horizon defaults to the trained length."""
    start = torch.tensor(plain(base, width), dtype=torch.float64)
    if not schedule.by_horizon:
        frequencies, temperature = schedule(start, base=base, width=width)
        assert isinstance(temperature, float)
        return frequencies.tolist(), temperature
    horizons = torch.tensor([schedule.short_horizon if horizon is None else horizon], dtype=torch.float64)
    frequencies, temperature = schedule(start, base=base, width=width, horizon=horizons)
    assert frequencies.shape == (1, width // 2)
    return frequencies[0].tolist(), float(temperature)


def turns_ramp(wavelength, length, slow, fast):
    r = length / wavelength
    return mpf(0) if r < slow else mpf(1) if r > fast else (r - slow) / (fast - slow)


def pairs_ramp(k, base, width, length, fast, slow, truncate):
    low, high = (width * mpmath.log(length / (2 * mpmath.pi * n)) / (2 * mpmath.log(base)) for n in (fast, slow))
    if truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = (min(max(end, 0), width - 1) for end in (low, high))
    return 1 - min(max((k - low) / (high - low or mpf("0.001")), 0), 1)


def mscale_of(s, m=1):
    return mpf(1) if s <= 1 else mpf("0.1") * mpf(m) * mpmath.log(s) + 1


def oracle(schedule: Schedule, base: float, width: int, length: float | None) -> tuple[list, object]:
    """Return the frequencies and temperature of the paper, or of the authors' code."""
    b, w, pairs = mpf(base), mpf(width), range(width // 2)
    theta = [b ** (-2 * k / w) for k in pairs]
    wave = [2 * mpmath.pi / t for t in theta]
    match schedule:
        case Linear(s):
            return [t / mpf(s) for t in theta], 1
        case DynamicLinear(trained_length):
            return [t / max(mpf(1), mpf(length) / trained_length) for t in theta], 1
        case NTK(s):
            return [(b * mpf(s) ** (w / (w - 2))) ** (-2 * k / w) for k in pairs], 1
        case NTKFixed(s):
            # Positions are written in base (b s)^(2/w), and each digit is reduced by s^(2/w).
            return [t / mpf(s) ** (2 * (k + 1) / w) for k, t in enumerate(theta)], 1
        case NTKMixed(s, power):
            a = mpmath.log(s) / (w / 2) ** mpf(power)
            return [t / mpmath.exp(a * mpf(k + 1) ** mpf(power)) for k, t in enumerate(theta)], 1
        case DynamicNTK(f, trained_length):
            growth = mpf(f) * max(mpf(length), trained_length) / trained_length - (mpf(f) - 1)
            return [(b * growth ** (w / (w - 2))) ** (-2 * k / w) for k in pairs], 1
        case NTKByParts(s, trained_length, slow, fast) | Llama3(s, trained_length, slow, fast):
            keep = [turns_ramp(x, trained_length, mpf(slow), mpf(fast)) for x in wave]
            return [(1 - g) * t / mpf(s) + g * t for g, t in zip(keep, theta, strict=True)], 1
        case PartNTK(s, trained_length):
            out = []
            for k, t in enumerate(theta):
                keep_1 = pairs_ramp(k, b, w, trained_length, mpf("1.25"), mpf("0.75"), True)
                far = pairs_ramp(k, b, w, trained_length, mpf(16), mpf(2), True)
                aware = (b * mpf(s) ** (w / (w - 2))) ** (-2 * k / w)
                out.append((t / mpf(s) * (1 - keep_1) + aware * keep_1) * (1 - far) + t * far)
            return out, 1
        case YaRN(s, trained_length, fast, slow, truncate, ramp):
            keep = [
                turns_ramp(wave[k], trained_length, mpf(slow), mpf(fast))
                if ramp == "turns"
                else pairs_ramp(k, b, w, trained_length, mpf(fast), mpf(slow), truncate)
                for k in pairs
            ]
            return [(1 - g) * t / mpf(s) + g * t for g, t in zip(keep, theta, strict=True)], mscale_of(mpf(s))
        case DynamicYaRN(least, trained_length, fast, slow, truncate):
            s = max(mpf(least), mpf(length) / trained_length)
            keep = [pairs_ramp(k, b, w, trained_length, mpf(fast), mpf(slow), truncate) for k in pairs]
            return [(1 - g) * t / s + g * t for g, t in zip(keep, theta, strict=True)], mscale_of(s)
        case LongRoPE(s, short, long, trained_length):
            divisors = long if length > trained_length else short
            return [t / mpf(d) for t, d in zip(theta, divisors, strict=True)], mpmath.sqrt(
                1 + mpmath.log(s) / mpmath.log(trained_length)
            )
        case Resonance(None):
            return [2 * mpmath.pi / mpmath.nint(x) for x in wave], 1
        case Clipped(None, trained_length, soft):
            count = sum(x > trained_length for x in wave)
            fade = [mpf(1)] * (len(theta) - count)
            for j in range(count):
                mscale = (1 + mpmath.cos(mpmath.pi * j / (count - 1))) / 2 if count > 1 else mpf(1)
                fade.append(mscale if soft else mpf(0))
            return [t * c for t, c in zip(theta, fade, strict=True)], 1
    raise AssertionError(schedule)


lengths = st.integers(2, 10**6)
factors = st.floats(1, 200)
divisors = st.floats(0.5, 100)
betas = st.tuples(st.floats(0.1, 4), st.floats(4.1, 64))


@st.composite
def schedules(draw, kind: type[Schedule]) -> tuple[Schedule, int]:
    """Draw a schedule of a kind with arbitrary parameters, and a matching rotary width."""
    pairs, (slow, fast) = draw(st.integers(2, 24)), draw(betas)
    s, length = draw(factors), draw(lengths)
    options = {
        Linear: (s,),
        DynamicLinear: (length,),
        NTK: (s,),
        NTKFixed: (s,),
        NTKMixed: (s, draw(st.floats(0, 2))),
        DynamicNTK: (s, length),
        NTKByParts: (s, length, slow, fast),
        PartNTK: (s, length),
        YaRN: (s, length, fast, slow, draw(st.booleans()), draw(st.sampled_from(RAMPS))),
        DynamicYaRN: (s, length, fast, slow, draw(st.booleans())),
        Llama3: (s, length, slow, fast),
        LongRoPE: (s, *(tuple(draw(st.lists(divisors, min_size=pairs, max_size=pairs))) for _ in range(2)), length),
        Resonance: (),
        Clipped: (None, length, draw(st.booleans())),
    }
    return kind(*options[kind]), 2 * pairs


@pytest.mark.parametrize("kind", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule_is_what_its_paper_says(kind: type[Schedule]) -> None:
    """The schedules' scalar formulas agree too. The contract compares everything else with those."""

    @given(case=schedules(kind), base=st.floats(2, 1e8), length=lengths)
    def ask(case, base: float, length: int) -> None:
        schedule, width = case
        with mpmath.workdps(30):
            frequencies, temperature = oracle(schedule, base, width, length)
            expected = [float(f) for f in frequencies]
        actual, warm = spectrum(schedule, base=base, width=width, horizon=length)
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-300)
        assert warm == pytest.approx(float(temperature), rel=1e-12)
        formula, warm = schedule.formula(plain(base, width), base=base, width=width, horizon=length)
        assert formula == pytest.approx(expected, rel=1e-8, abs=1e-300)
        assert warm == pytest.approx(float(temperature), rel=1e-12)

    ask()


def test_yarn_has_the_pinned_frequencies_ramp_and_temperature() -> None:
    schedule = YaRN(8, trained_length=4096)
    actual, temperature = spectrum(schedule)
    expected = {0: 1.0, 28: 1.299512e-02, 36: 2.595421e-03, 63: 1.443477e-05}
    assert {k: actual[k] for k in expected} == pytest.approx(expected, rel=5e-7)
    assert schedule.ends(1e4, 128) == (20, 46)
    assert temperature == pytest.approx(1.207944, abs=5e-7)


@pytest.mark.parametrize("ramp", RAMPS)
def test_yarn_keeps_the_fast_pairs(ramp: str) -> None:
    # LitGPT's ramp is inverted: it divides the fast pairs and keeps the slow ones (Lightning-AI/litgpt#2202).
    actual, _ = spectrum(YaRN(8, trained_length=4096, ramp=ramp))
    assert actual[:20] == pytest.approx(plain()[:20], rel=1e-14)
    assert actual[46:] == pytest.approx([f / 8 for f in plain()[46:]], rel=1e-14)
    shares = [a / b for a, b in zip(actual, plain(), strict=True)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(("base", "length"), [(10.0, 32_768), (1e4, 1), (2.0, 5)])
def test_a_ramp_that_lies_outside_the_pairs_does_not_run_backwards(base: float, length: int) -> None:
    schedule = YaRN(4, trained_length=length)
    low, high = schedule.ends(base, 16)
    assert 0 <= low < high
    actual, _ = spectrum(schedule, base=base, width=16)
    turns = [length * f / (2 * math.pi) for f in plain(base, 16)]
    if min(turns) > 32:
        assert actual == pytest.approx(plain(base, 16), rel=1e-14)
    else:
        assert actual[1:] == pytest.approx([f / 4 for f in plain(base, 16)[1:]], rel=1e-14)


def released_yarn(frequencies: list[float], factor: float, length: int, base: float, width: int) -> list[float]:
    """Return YaRN's frequencies by the authors' `find_correction_range` and `linear_ramp_factor`."""
    low, high = (width * math.log(length / (n * 2 * math.pi)) / (2 * math.log(base)) for n in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    high = high + 0.001 if low == high else high
    ramp = [min(max((k - low) / (high - low), 0), 1) for k in range(len(frequencies))]
    return [f / factor * r + f * (1 - r) for f, r in zip(frequencies, ramp, strict=True)]


@example(base=10.0, length=32_768, width=16)
@example(base=1e4, length=1, width=16)
@given(base=st.floats(2, 1e8), length=st.integers(1, 1 << 20), width=st.integers(2, 64).map(lambda n: 2 * n))
def test_the_formula_of_yarn_is_the_released_one_but_for_a_ramp_outside_the_pairs(base, length, width) -> None:
    frequencies = plain(base, width)
    actual, _ = YaRN(4, trained_length=length).formula(frequencies, base=base, width=width)
    released_code = released_yarn(frequencies, 4, length, base, width)
    turns = [length * base ** (-2 * pair / width) / (2 * math.pi) for pair in (0, width - 1)]
    # The ends are rounded outwards, so a ramp within one pair of the edge still reaches it.
    if turns[0] * base ** (2 / width) > 1 and turns[1] < 32:
        assert actual == pytest.approx(released_code, rel=1e-12)
    elif turns[0] * base ** (2 / width) < 0.99 or turns[1] * base ** (-2 / width) > 32.1:
        assert actual != pytest.approx(released_code, rel=1e-3)
    assert "released code runs it backwards" in (YaRN.__doc__ or "")


# Released configurations, with the factors of cos and sin (first) and of the attention scale (second).
TRUTH = {
    "Qwen 2.5 and 3": ({"factor": 4}, 1.138629, 1.0),
    "peers' pin, factor 8": ({"factor": 8}, 1.207944, 1.0),
    "gpt-oss": ({"factor": 32, "truncate": False}, 1.346574, 1.0),
    "SmolLM3, factor 2": ({"factor": 2}, 1.069315, 1.0),
    "DeepSeek-V2": ({"factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}, 1.0, 1.589626),
    "DeepSeek-V3": ({"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, 1.873854),
    "Kimi K2": ({"factor": 32, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, 1.813261),
    "Mistral Small 4": ({"factor": 128, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, 2.205828),
    "DeepSeek-V4": ({"factor": 16, "attention_factor": 1.0}, 1.0, 1.0),
    "explicit factor beside mscale": (
        {"factor": 40, "attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 1.0},
        1.25,
        1.873854,
    ),
    "two different mscales": ({"factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.368888 / 1.184444, 1.402908),
    "one key, transformers": ({"factor": 40, "mscale": 0.707, "mscale_all_dim": 0.0}, 1.368888, 1.0),
    "one key, DeepSeek": (
        {"factor": 40, "mscale": 0.707, "mscale_all_dim": 0.0, "mscale_rule": "apart"},
        1.260804,
        1.0,
    ),
    "the other key, transformers": ({"factor": 40, "mscale_all_dim": 0.707}, 1.368888, 1.589626),
    "the other key, DeepSeek": (
        {"factor": 40, "mscale_all_dim": 0.707, "mscale_rule": "apart"},
        1.368888 / 1.260804,
        1.589626,
    ),
    "no key, DeepSeek": ({"factor": 40, "mscale_rule": "apart"}, 1.368888, 1.0),
    "nothing stretched": ({"factor": 1, "mscale": 1.0, "mscale_all_dim": 0.0, "mscale_rule": "apart"}, 1.0, 1.0),
}


@pytest.mark.parametrize("config", TRUTH)
def test_the_attention_factor_of_every_known_configuration(config: str) -> None:
    options, temperature, scale = TRUTH[config]
    schedule = YaRN(**options, trained_length=4096)
    assert spectrum(schedule)[1] == schedule.temperature == pytest.approx(temperature, abs=2e-6)
    assert schedule.scale_factor == pytest.approx(scale, abs=2e-6)


def test_the_two_rules_of_mscale_part_where_one_number_is_missing_and_nowhere_else() -> None:
    for mscale in (None, 0.0, 0.707, 1.0):
        for all_dim in (None, 0.0, 0.707, 1.0):
            together, apart = (
                YaRN(40, mscale=mscale, mscale_all_dim=all_dim, mscale_rule=rule).temperature for rule in MSCALE_RULES
            )
            both_or_default = bool(mscale and all_dim) or (mscale in (None, 1.0) and not all_dim)
            assert (together == pytest.approx(apart, rel=1e-15)) == both_or_default


def test_the_scale_factor_is_what_rotation_cannot_do_with_the_scale_of_attention() -> None:
    # cos and sin are scaled by g(1)/g(1) = 1; without the other factor DeepSeek-V3's logits are 1.87 times too small.
    schedule = YaRN(40, trained_length=64, mscale=1.0, mscale_all_dim=1.0)
    expected = YaRN(40, trained_length=64)
    q, k = torch.randn(1, 1, 9, 8, dtype=torch.float64), torch.randn(1, 1, 9, 8, dtype=torch.float64)
    logits, full = (torch.einsum("bhid,bhjd->bhij", *Rotary(8, schedule=s)(q, k)) for s in (schedule, expected))
    torch.testing.assert_close(logits * schedule.scale_factor, full, rtol=1e-12, atol=1e-12)
    assert Linear(4).scale_factor == Llama3(4).scale_factor == YaRN(4).scale_factor == 1.0


def test_llama3_has_the_pinned_frequencies() -> None:
    actual, temperature = spectrum(Llama3(8, trained_length=8192), base=5e5)
    expected = {28: 3.211446e-03, 32: 5.248460e-04, 36: 7.784655e-05, 63: 3.068926e-07}
    assert {k: actual[k] for k in expected} == pytest.approx(expected, rel=5e-7)
    assert temperature == 1.0


@pytest.mark.parametrize("make", [lambda n: Llama3(16, n, low=1.0, high=1.0), lambda n: NTKByParts(16, n, 1.0, 1.0)])
def test_equal_bounds_make_a_step_and_no_division_by_zero(make) -> None:
    # Llama 4 has low = high = 1.
    actual, _ = spectrum(make(8192), base=5e5)
    expected = [f if 8192 * f / (2 * math.pi) >= 1 else f / 16 for f in plain(5e5)]
    assert actual == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("schedule", [NTK(2), DynamicNTK(2, trained_length=8)], ids=repr)
def test_ntk_needs_two_pairs(schedule: Schedule) -> None:
    with pytest.raises(
        ValueError,
        match="ntk keeps the fastest pair and stretches the slowest, which takes two pairs; got a rotary width of 2",
    ):
        Rotary(2, schedule=schedule)


def test_a_static_table_is_the_dynamic_one_at_a_fixed_horizon() -> None:
    # vLLM's "dynamic" NTK is one table for its longest sequence (vllm-project/vllm#3488); posenc names both.
    static, _ = spectrum(NTK(4 * 8 - 3))
    assert spectrum(DynamicNTK(4, trained_length=2048), horizon=8 * 2048)[0] == pytest.approx(static, rel=1e-12)


LONG = LongRoPE(32, (1.0, 1.05, 1.1), (1.0, 4.0, 30.0), trained_length=4096)


def test_longrope_has_a_list_and_a_temperature_for_short_and_for_long() -> None:
    default = math.sqrt(1 + math.log(32) / math.log(4096))
    assert default == pytest.approx(1.190238, abs=1e-6)  # Phi-3, 4096 to 131,072
    for length, divisors in ((1, LONG.short_factor), (4096, LONG.short_factor), (4097, LONG.long_factor)):
        actual, warm = spectrum(LONG, width=6, horizon=length)
        assert actual == pytest.approx([f / d for f, d in zip(plain(width=6), divisors, strict=True)], rel=1e-14)
        assert warm == pytest.approx(default, rel=1e-14)
    with_mscales = dataclasses.replace(LONG, short_mscale=1.0, long_mscale=1.25)
    assert [spectrum(with_mscales, width=6, horizon=n)[1] for n in (4096, 4097)] == [1.0, 1.25]
    half = dataclasses.replace(LONG, long_mscale=1.25)
    assert [spectrum(half, width=6, horizon=n)[1] for n in (4096, 4097)] == pytest.approx([default, 1.25], rel=1e-14)
    with_factor = dataclasses.replace(LONG, attention_factor=1.5)
    assert [spectrum(with_factor, width=6, horizon=n)[1] for n in (4096, 4097)] == [1.5, 1.5]
    assert spectrum(dataclasses.replace(LONG, factor=1), width=6, horizon=9)[1] == 1.0


@pytest.mark.parametrize("width", [4, 8])
def test_longrope_refuses_lists_that_do_not_fit_the_pairs(width: int) -> None:
    with pytest.raises(
        ValueError, match=rf"short_factor must hold one number for each of the {width // 2} pairs .*got 3"
    ):
        Rotary(width, schedule=LONG)
    with pytest.raises(ValueError, match=r"long_factor must hold one number for each of the 3 pairs .*got 2"):
        Rotary(6, schedule=dataclasses.replace(LONG, long_factor=(1.0, 2.0)))


BY_LENGTH = [
    DynamicLinear(trained_length=64),
    DynamicNTK(2, trained_length=64),
    DynamicYaRN(trained_length=64),
    LongRoPE(4, (1.0, 1.1, 1.3, 1.5), (1.0, 2.0, 3.0, 4.0), trained_length=64),
    Resonance(DynamicNTK(2, trained_length=64)),
    Clipped(pairs=2, inner=DynamicYaRN(trained_length=64)),
]


@pytest.mark.parametrize("schedule", BY_LENGTH, ids=repr)
def test_every_sequence_gets_its_own_frequencies(schedule: Schedule) -> None:
    start = torch.tensor(plain(width=8), dtype=torch.float64)
    horizons = torch.tensor([10, 64, 100, 1000])
    together, warm = schedule(start, base=1e4, width=8, horizon=horizons)
    for row, length in enumerate(horizons):
        alone, temperature = schedule(start, base=1e4, width=8, horizon=length[None])
        assert torch.equal(together[row : row + 1], alone)
        assert torch.equal(torch.as_tensor(warm).expand(4)[row], torch.as_tensor(temperature).expand(1)[0])
    assert torch.equal(together[0], together[1]) and not torch.equal(together[1], together[3])


@pytest.mark.parametrize("schedule", BY_LENGTH, ids=repr)
def test_a_schedule_by_horizon_does_not_guess_one(schedule: Schedule) -> None:
    assert schedule.by_horizon
    with pytest.raises(ValueError, match="depends on the horizon of a sequence, and none was given"):
        schedule(torch.ones(4, dtype=torch.float64), base=1e4, width=8)
    with pytest.raises(ValueError, match="depends on the horizon of a sequence"):
        schedule.formula(plain(width=8), base=1e4, width=8)


def test_resonance_rounds_what_another_schedule_gives_and_keeps_its_temperature() -> None:
    inner = YaRN(8, trained_length=4096, mscale=1.0, mscale_all_dim=0.5)
    actual, warm = spectrum(Resonance(inner))
    assert actual == pytest.approx([2 * math.pi / round(2 * math.pi / f) for f in spectrum(inner)[0]], rel=1e-14)
    assert warm == inner.temperature and Resonance(inner).scale_factor == inner.scale_factor
    assert not Resonance(inner).by_horizon


@pytest.mark.parametrize("outer", [Resonance, Clipped])
def test_a_schedule_around_another_has_its_lengths_and_its_scale(outer) -> None:
    dynamic, warm = DynamicNTK(2, trained_length=64), YaRN(8, trained_length=4096, mscale=1.0, mscale_all_dim=0.5)
    assert outer(inner=dynamic).by_horizon and outer(inner=dynamic).short_horizon == 64
    assert outer(inner=warm).scale_factor == warm.scale_factor != 1.0 == outer().scale_factor
    assert Clipped(trained_length=32).short_horizon == 32


def test_clipped_fades_the_slow_pairs_like_the_authors_code() -> None:
    actual, warm = spectrum(Clipped(pairs=20), base=5e5)
    taper = [0.5 * (1 + math.cos(math.pi * j / 19)) for j in range(20)]
    assert actual[:44] == plain(5e5)[:44] and warm == 1.0
    assert actual[44:] == pytest.approx([f * t for f, t in zip(plain(5e5)[44:], taper, strict=True)], abs=1e-20)
    assert actual[44] == plain(5e5)[44] and actual[63] == 0.0
    hard, _ = spectrum(Clipped(pairs=20, soft=False), base=5e5)
    assert hard == [*plain(5e5)[:44], *[0.0] * 20]
    assert spectrum(Clipped(pairs=0))[0] == plain()
    assert spectrum(Clipped(pairs=1000, soft=False))[0] == [0.0] * 64


def test_clipped_follows_another_schedule_but_counts_by_plain_wavelengths() -> None:
    inner = YaRN(8, trained_length=4096)
    actual, warm = spectrum(Clipped(trained_length=4096, soft=False, inner=inner))
    assert actual == spectrum(inner)[0][:46] + [0.0] * 18 and warm == inner.temperature


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_example_of_a_schedule_builds_and_prints_as_it_is_written(name: str) -> None:
    spec = f"rotary(schedule={SCHEDULES[name].example})"
    encoding = build(spec, Shape(dim=12, heads=2, head_dim=6, max_len=32))
    assert isinstance(encoding, Rotary) and encoding.schedule is not None
    assert type(encoding.schedule) is SCHEDULES[name] and name == encoding.schedule.spec_name
    again = build(repr(encoding), Shape(dim=12, heads=2, head_dim=6, max_len=99))
    assert isinstance(again, Rotary) and again.schedule == encoding.schedule
    assert hash(again.schedule) == hash(encoding.schedule)


@pytest.mark.parametrize(
    "name", ["yarn", "llama3", "ntk_by_parts", "part_ntk", "dynamic_ntk", "dynamic_yarn", "dynamic_linear", "clipped"]
)
def test_the_trained_length_is_filled_in_from_the_model(name: str) -> None:
    shape = Shape.of(dim=64, heads=4, max_len=777)
    options = "factor=2" if name not in ("clipped", "dynamic_linear") else ""
    encoding = build(f"rotary(schedule={name}({options}))", shape)
    assert isinstance(encoding, Rotary) and encoding.schedule is not None
    assert dataclasses.asdict(encoding.schedule)["trained_length"] == 777
    given_one = build(f"rotary(schedule={name}({', '.join(filter(None, [options, 'trained_length=99']))}))", shape)
    assert isinstance(given_one, Rotary) and dataclasses.asdict(given_one.schedule)["trained_length"] == 99


def test_a_schedule_inside_another_learns_the_trained_length_too() -> None:
    schedule = Resonance(YaRN(2)).with_trained_length(50)
    assert schedule == Resonance(YaRN(2, trained_length=50))
    assert Clipped(inner=DynamicNTK(2)).with_trained_length(50) == Clipped(
        trained_length=50, inner=DynamicNTK(2, trained_length=50)
    )
    assert Clipped(pairs=3).with_trained_length(50) == Clipped(pairs=3)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if hasattr(SCHEDULES[name], "trained_length")])
def test_a_trained_length_below_one_is_refused(name: str) -> None:
    schedule = parse(f"rotary(schedule={SCHEDULES[name].example})").options[0][1]
    for length in (0, -5):
        with pytest.raises(ValueError, match=f"{name}: trained_length must be . or more tokens, got {length}"):
            dataclasses.replace(schedule, trained_length=length)


def test_what_is_left_out_of_a_schedule_is_what_was_published() -> None:
    assert NTKMixed(2) == NTKMixed(2, 0.625)
    assert DynamicNTK() == DynamicNTK(1.0)
    assert DynamicYaRN() == DynamicYaRN(1.0, None, 32.0, 1.0, True)
    assert NTKByParts(2) == NTKByParts(2, None, 1.0, 32.0)
    assert Llama3(2) == Llama3(2, None, 1.0, 4.0)
    assert YaRN(2) == YaRN(2, None, 32.0, 1.0, True, "pairs", None, None, None, "together")


def test_schedules_without_a_length_take_none() -> None:
    for schedule in (Linear(2), NTK(2), NTKFixed(2), NTKMixed(2), Resonance()):
        assert schedule.with_trained_length(5) is schedule


@pytest.mark.parametrize("name", ["yarn", "llama3", "ntk_by_parts", "part_ntk", "dynamic_ntk", "dynamic_yarn"])
def test_an_unknown_trained_length_is_asked_for(name: str) -> None:
    words = rf"{name} compares wavelengths with the trained length; give {name}\(..., trained_length=4096\)"
    schedule = SCHEDULES[name](factor=2)
    with pytest.raises(ValueError, match=words):
        schedule(torch.ones(64, dtype=torch.float64), base=1e4, width=128, horizon=torch.tensor([5]))
    with pytest.raises(ValueError, match=words):
        schedule.formula(plain(), base=1e4, width=128, horizon=5)
    with pytest.raises(ValueError, match=words):
        Rotary(8, schedule=schedule)


WITH_FACTOR = [name for name in SCHEDULES if name not in ("dynamic_linear", "longrope", "resonance", "clipped")]


@pytest.mark.parametrize("name", WITH_FACTOR)
@pytest.mark.parametrize("factor", [0.5, 0, -1])
def test_a_factor_below_one_is_refused(name: str, factor: float) -> None:
    with pytest.raises(
        ValueError, match=rf"{name}: factor must be 1 or more \(target length / trained length\), got {factor}"
    ):
        SCHEDULES[name](factor=factor)


@pytest.mark.parametrize("name", WITH_FACTOR)
@pytest.mark.parametrize("factor", [math.nan, math.inf, "two", True, None])
def test_a_factor_that_is_no_finite_number_is_refused(name: str, factor) -> None:
    with pytest.raises(ValueError, match=rf"{name}: factor must be a finite number, got {factor!r}"):
        SCHEDULES[name](factor=factor)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: YaRN(2, trained_length=0), "yarn: trained_length must be 1 or more tokens, got 0"),
        (lambda: YaRN(2, trained_length=9.5), "yarn: trained_length must be a whole number, got 9.5"),
        (lambda: YaRN(2, truncate="false"), "yarn: truncate must be True or False, got 'false'"),
        (lambda: YaRN(2, ramp="turn"), "yarn: ramp must be one of pairs, turns, got 'turn'"),
        (lambda: YaRN(2, mscale_rule="both"), "yarn: mscale_rule must be one of together, apart, got 'both'"),
        (lambda: YaRN(2, mscale=-1.0), "yarn: mscale must be 0 or more, got -1.0"),
        (lambda: YaRN(2, mscale_all_dim=math.nan), "yarn: mscale_all_dim must be a finite number, got nan"),
        (lambda: Llama3(2, trained_length=-5), "llama3: trained_length must be 1 or more tokens, got -5"),
        (
            lambda: YaRN(2, beta_fast=1, beta_slow=2),
            r"yarn: needs beta_fast >= beta_slow > 0 \(turns\), got beta_slow=2 and beta_fast=1",
        ),
        (lambda: YaRN(2, beta_slow=0), "yarn: needs beta_fast >= beta_slow > 0"),
        (lambda: DynamicYaRN(beta_slow=0), "dynamic_yarn: needs beta_fast >= beta_slow > 0"),
        (lambda: YaRN(2, attention_factor=0.0), "yarn: attention_factor must be above 0, got 0.0"),
        (lambda: Llama3(2, low=5.0), r"llama3: needs high >= low > 0 \(turns\), got low=5.0 and high=4.0"),
        (lambda: Llama3(2, low=0.0), "llama3: needs high >= low > 0"),
        (lambda: NTKByParts(2, alpha=40.0), r"ntk_by_parts: needs beta >= alpha > 0 \(turns\), got alpha=40.0"),
        (lambda: NTKMixed(2, power=-0.1), "ntk_mixed: power must be 0 or more, got -0.1"),
        (lambda: DynamicLinear(0), "dynamic_linear: trained_length must be 1 or more tokens, got 0"),
        (lambda: LongRoPE(2, (), (1.0,)), r"longrope: short_factor must be a list of numbers above 0, .*got \(\)"),
        (lambda: LongRoPE(2, (1.0,), (0.0,)), r"longrope: long_factor must be a list of numbers above 0, .*\(0.0,\)"),
        (lambda: LongRoPE(2, (1.0,), (math.nan,)), "longrope: long_factor must be a list of numbers above 0"),
        (lambda: LongRoPE(2, 3.0, (1.0,)), "longrope: short_factor must be a list of numbers above 0, .*got 3.0"),
        (lambda: LongRoPE(2, (1.0,), (1.0,), 1), "longrope: trained_length must be 2 or more tokens, got 1"),
        (lambda: LongRoPE(2, (1.0,), (1.0,), long_mscale=0.0), "longrope: long_mscale must be above 0, got 0.0"),
        (
            lambda: LongRoPE(2, (1.0,), (1.0,), attention_factor=1.0, short_mscale=1.0),
            "longrope: attention_factor is the temperature of both lists.* give the first or the others",
        ),
        (lambda: Resonance(inner="yarn"), r"resonance: inner must be a schedule, such as yarn\(factor=4\), got 'yarn'"),
        (lambda: Clipped(pairs=-1), "clipped: pairs must be 0 or more, got -1"),
        (lambda: Clipped(pairs=1.5), "clipped: pairs must be a whole number, got 1.5"),
        (lambda: Clipped(soft=1), "clipped: soft must be True or False, got 1"),
    ],
)
def test_impossible_options_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_list_in_a_spec_is_a_list_of_factors() -> None:
    spec = "rotary(schedule=longrope(factor=4, short_factor=[1, 1.1, 1.3], long_factor=(1.0, 2.0, 4.0)))"
    ((_, schedule),) = parse(spec).options
    assert schedule == LongRoPE(4, (1, 1.1, 1.3), (1.0, 2.0, 4.0))
    assert LongRoPE(4, [1.0], [2.0]).short_factor == (1.0,)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["attn_factor", "original_max_position_embeddings", "type", "rope_type"])
def test_an_unknown_key_is_refused_and_not_ignored(option: str) -> None:
    with pytest.raises(ValueError, match=f"yarn has no option '{option}'"):
        parse(f"rotary(schedule=yarn(factor=4, {option}=1))")


def test_a_schedule_prints_as_it_is_written_and_cannot_be_changed() -> None:
    assert repr(Linear(2)) == "linear(factor=2)" and repr(NTK(1.5)) == "ntk(factor=1.5)"
    assert repr(YaRN(4, truncate=False)) == "yarn(factor=4, truncate=False)"
    assert repr(Llama3(8, trained_length=8192)) == "llama3(factor=8, trained_length=8192)"
    assert repr(Resonance()) == "resonance()" and repr(Resonance(NTK(2))) == "resonance(inner=ntk(factor=2))"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Linear(2).factor = 3  # type: ignore[misc]


def test_a_schedule_works_on_positions_that_only_a_graph_knows() -> None:
    # The horizon's values are never read, so the same code runs on the meta device.
    at = Positions.count(5, device="meta").with_horizon(torch.zeros(2, device="meta"))
    q = torch.zeros(2, 1, 5, 8, device="meta")
    assert Rotary(8, schedule=DynamicNTK(2, trained_length=3)).query(q, at).shape == q.shape


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_computes_where_its_frequencies_are(name: str) -> None:
    schedule = parse(f"rotary(schedule={SCHEDULES[name].example})").options[0][1].with_trained_length(64)
    there = torch.ones(3, dtype=torch.float64, device="meta")
    frequencies, _ = schedule(there, base=1e4, width=6, horizon=torch.ones(2, device="meta"))
    assert frequencies.is_meta and frequencies.shape[-1] == 3


def test_a_number_is_finite_as_a_float_whatever_its_digits() -> None:
    assert all(map(is_number, (0, -1.5, 10**300)))
    assert not any(map(is_number, (10**400, -(10**400), float("inf"), float("nan"), True, "1", None)))
    with pytest.raises(ValueError, match="factor must be a finite number, got a number of more than 200 digits"):
        Linear(10**400)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_number_of_every_schedule_must_be_a_number(name: str) -> None:
    schedule = build(
        f"rotary(schedule={SCHEDULES[name].example})", Shape(dim=12, heads=2, head_dim=6, max_len=64)
    ).schedule
    for field in dataclasses.fields(schedule):
        with pytest.raises(ValueError, match=rf"{name}: {field.name} must be"):
            dataclasses.replace(schedule, **{field.name: object()})


@pytest.mark.parametrize("make", [Rotary, ProportionalRotary, MultimodalRotary])
def test_a_schedule_may_be_given_as_a_spec_says_it(make: type) -> None:
    from_spec, from_object = make(64, schedule="linear(factor=2)"), make(64, schedule=Linear(2))
    assert from_spec.schedule == from_object.schedule and repr(from_spec) == repr(from_object)
    q = torch.randn(1, 1, 3, 64)
    assert from_spec.query(q, Positions.count(3, start=9)).equal(from_object.query(q, Positions.count(3, start=9)))
    assert make(64, schedule=None).schedule is None
    for wrong, words in (
        ("linaer(factor=2)", r"no schedule named 'linaer'; did you mean 'linear'\?"),
        ("linear(fractor=2)", r"linear has no option 'fractor'; it has: factor; did you mean 'factor'\?"),
        ("linear", r"linear needs factor by name, as in yarn\(factor=4\); got 'linear\(\)'"),
        (3, r"schedule must be one of posenc.schedules, such as linear\(factor=4\), got 3"),
        ("linear(2)", r"linear needs factor by name, as in yarn\(factor=4\); got 'linear\(2\)'"),
        ("linear(", r"'linear\(' is no schedule"),
    ):
        with pytest.raises(ValueError, match=words):
            make(64, schedule=wrong)


def test_what_a_message_recommends_is_taken() -> None:
    with pytest.raises(ValueError, match="such as") as error:
        Rotary(64, schedule=4)
    advice = str(error.value).partition("such as ")[2].partition(", got")[0]
    assert Rotary(64, schedule=advice).schedule == Linear(4)
