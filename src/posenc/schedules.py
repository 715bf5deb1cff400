"""Rotary frequency schedules: functions from plain frequencies to (frequencies, temperature).

They stretch a trained rotary model to longer contexts. The temperature multiplies cosines and sines, and so logits by
its square. Some depend on the declared horizon of each sequence, and never on the batch that it stands in. Each one
also states its published scalar formula, which the contract holds it to.
"""

import ast
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args

import torch
from torch import Tensor

from posenc import checks
from posenc.foreign import expression, near, quoted, written

Horizon = TypeVar("Horizon", Tensor, float)

RAMPS = ("pairs", "turns")
MSCALE_RULES = ("together", "apart")


@dataclass(frozen=True)
class Schedule:
    """Base of the schedules: frozen numbers, printed as they are written in a spec."""

    name: ClassVar[str] = ""
    """The name in specs."""

    example: ClassVar[str] = ""
    """A spec of it with all that it needs, for three channel pairs."""

    by_length: ClassVar[bool] = False
    """Whether it depends on the declared horizon of a sequence, so that keys have to be cached unturned."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_kind(self, field.name, field.type)

    def __call__(
        self, frequencies: Tensor, *, base: float, width: int, length: Tensor | None = None
    ) -> tuple[Tensor, float | Tensor]:
        """The new frequencies and the temperature, from plain frequencies base^(-2k/width).

        frequencies  [width/2], radians per position, float64, fastest first
        length       [B] on the same device, the horizon of each sequence (positions), for schedules that are
                     `by_length`: they give frequencies [B, width/2] and a temperature [B] or for all
        """
        raise NotImplementedError

    def formula(
        self, frequencies: Sequence[float], *, base: float, width: int, length: float | None = None
    ) -> tuple[list[float], float]:
        """The same, pair by pair in scalars, as published."""
        raise NotImplementedError

    @property
    def scale_factor(self) -> float:
        """By what the `scale` of Attention has to be multiplied besides, which no rotation can do."""
        return 1.0

    def with_trained_length(self, trained_length: int) -> "Schedule":
        """The same schedule with the trained length filled in, where it needs one and none was given."""
        return replace(self, trained_length=trained_length) if getattr(self, "trained_length", 0) is None else self

    @property
    def known_length(self) -> int:
        """The trained length (tokens); raises ValueError when it is unknown."""
        length = getattr(self, "trained_length", None)
        if length is None:
            raise ValueError(
                f"{self.name} compares wavelengths with the trained length; give {self.name}(..., trained_length=4096)"
            )
        return length

    @property
    def short_length(self) -> int:
        """Up to which horizon (positions) a schedule that is `by_length` gives the same as at the trained length."""
        return self.known_length

    def stretch(self, length: Tensor | None) -> Tensor:
        """Horizon / trained length [B], 1 or more."""
        return (self.known_horizon(length).double() / self.known_length).clamp(min=1)

    def known_horizon(self, length: Horizon | None) -> Horizon:
        """The horizon; raises ValueError when there is none."""
        if length is None:
            raise ValueError(
                f"{self.name} depends on how long a sequence is, and no length was given; of the encodings, rotary does"
            )
        return length

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(given)})"


def check_kind(schedule: Schedule, option: str, kind: object) -> None:
    """Raises ValueError unless an option has a value of its kind: in a spec, a bare word is a string."""
    value, told = getattr(schedule, option), f"{schedule.name}: {option}"
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and type(None) in kinds:
        return
    if Schedule in kinds and not isinstance(value, Schedule):
        raise ValueError(f"{told} must be a schedule, such as yarn(factor=4), got {checks.shown(value)}")
    if float in kinds:
        checks.number(told, value)
    elif {bool, int, str} & set(kinds):
        checks.kind(told, value, kind)


def check_least(schedule: Schedule, option: str, least: float, meaning: str) -> None:
    value = getattr(schedule, option)
    if value is not None and not value >= least:
        raise ValueError(f"{schedule.name}: {option} must be {least} or more{meaning}, got {quoted(value)}")


def check_positive(schedule: Schedule, option: str) -> None:
    value = getattr(schedule, option)
    if value is not None and not value > 0:
        raise ValueError(f"{schedule.name}: {option} must be above 0, got {quoted(value)}")


def check_factor(schedule: Schedule) -> None:
    check_least(schedule, "factor", 1, " (target length / trained length)")


def check_length(schedule: Schedule, least: int = 1) -> None:
    check_least(schedule, "trained_length", least, " tokens")


def check_word(schedule: Schedule, option: str, words: tuple[str, ...]) -> None:
    value = getattr(schedule, option)
    if value not in words:
        raise ValueError(f"{schedule.name}: {option} must be one of {', '.join(words)}, got {quoted(value)}")


def check_two_pairs(schedule: Schedule, width: int) -> None:
    if width < 4:
        raise ValueError(
            f"{schedule.name} keeps the fastest pair and stretches the slowest, which takes two pairs; "
            f"got a rotary width of {width}"
        )


def pair_ramp(length: int, *, base: float, width: int, fast: float, slow: float, truncate: bool) -> tuple[float, float]:
    """The pair indices, not whole, that turn `fast` and `slow` times within `length`; truncate: rounded outwards."""
    low, high = (width * math.log(length / (2 * math.pi * n)) / (2 * math.log(base)) for n in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    # Both ends on both sides: as released, with one side each, a ramp that lies wholly outside runs backwards.
    low, high = (min(max(end, 0), width - 1) for end in (low, high))
    return low, high if high != low else high + 0.001


def kept_by_pair(ends: tuple[float, float], like: Tensor) -> Tensor:
    """The share of each pair that stays: 1 up to the first end, 0 from the second on, linear in the pair index."""
    low, high = ends
    k = torch.arange(like.shape[-1], dtype=like.dtype, device=like.device)
    return 1 - ((k - low) / (high - low)).clamp(0, 1)


def kept_by_turns(frequencies: Tensor, length: int, low: float, high: float) -> Tensor:
    """The share of each pair that stays: 0 up to `low` turns within `length`, 1 from `high` on, linear in turns."""
    turns = length * frequencies / (2 * math.pi)
    if high == low:
        return (turns >= low).to(frequencies.dtype)
    return ((turns - low) / (high - low)).clamp(0, 1)


def published_pair_ramp(
    pairs: int, length: float, *, base: float, width: int, fast: float, slow: float, truncate: bool
) -> list[float]:
    """The same shares in scalars, as the released implementations have them where the ramp meets the pairs.

    Each of their ends is kept on one side only, so that a ramp which ends before the first pair, or begins behind the
    last, runs backwards. That is no part of the idea: here the pairs are then all behind it, or all before it.
    """
    ends = []
    for turns, outwards in ((fast, math.floor), (slow, math.ceil)):
        pair = math.log(length / (turns * 2 * math.pi), base) * width / 2
        ends.append(outwards(pair) if truncate else pair)
    low, high = max(ends[0], 0), min(ends[1], width - 1)
    if low > high:
        return [1.0] * pairs if high == width - 1 else [1.0] + [0.0] * (pairs - 1)
    return [1 - min(max((k - low) / ((high - low) or 0.001), 0), 1) for k in range(pairs)]


def published_turn_ramp(frequency: float, length: float, low: float, high: float) -> float:
    """The share of one pair that stays, in scalars, by how its wavelength compares with the trained length."""
    wavelength = 2 * math.pi / frequency
    if wavelength <= length / high:
        return 1.0
    if wavelength > length / low:
        return 0.0
    return (length / wavelength - low) / (high - low)


def yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """0.1 mscale ln(factor) + 1, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1


@dataclass(frozen=True, repr=False)
class Linear(Schedule):
    """Position interpolation: every frequency divided by the factor, as if positions were squeezed.

    frequency' = frequency / factor

    factor  target length / trained length (unitless, 1 or more)

    Limit: needs fine-tuning (some 1000 steps); without it the short range suffers at once.
    Source: Chen et al. 2023, arXiv:2306.15595, section 2.3.

    >>> Linear(factor=2)(torch.tensor([1.0, 0.1]), base=100, width=4)[0]
    tensor([0.5000, 0.0500])
    """

    name = "linear"
    example = "linear(factor=4)"

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)

    def __call__(self, frequencies, *, base, width, length=None):
        return frequencies / self.factor, 1.0

    def formula(self, frequencies, *, base, width, length=None):
        return [f / self.factor for f in frequencies], 1.0


@dataclass(frozen=True, repr=False)
class DynamicLinear(Schedule):
    """Position interpolation by just as much as each sequence needs.

    frequency' = frequency / max(1, horizon / trained_length)

    trained_length  tokens; a model built from a spec fills in its own

    Limit: as linear; and a model tuned for one factor meets others.
    Source: the dynamic scaling of jquesnelle/yarn 2023 (`ntk=False`); emozilla 2023.
    """

    name = "dynamic_linear"
    example = "dynamic_linear()"
    by_length = True

    trained_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self)

    def __call__(self, frequencies, *, base, width, length=None):
        return frequencies / self.stretch(length)[:, None], 1.0

    def formula(self, frequencies, *, base, width, length=None):
        # Positions are squeezed by trained / current length.
        squeeze = min(1.0, self.known_length / self.known_horizon(length))
        return [f * squeeze for f in frequencies], 1.0


@dataclass(frozen=True, repr=False)
class NTK(Schedule):
    """NTK-aware scaling: a larger base; the fastest pair keeps its frequency, the slowest is divided by the factor.

    base' = base factor^(r/(r-2))

    factor  target length / trained length (unitless, 1 or more); without tuning it has to exceed that ratio.
            Hunyuan's "alpha" (1000 in its models) is this number

    Raises ValueError for a rotary width r of 2, where one pair would have to be both.
    Source: bloc97 2023; stated in Peng et al. 2023, arXiv:2309.00071, definition 1.
    """

    name = "ntk"
    example = "ntk(factor=4)"

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)

    def __call__(self, frequencies, *, base, width, length=None):
        check_two_pairs(self, width)
        k = torch.arange(width // 2, dtype=frequencies.dtype, device=frequencies.device)
        return frequencies * self.factor ** (-2 * k / (width - 2)), 1.0

    def formula(self, frequencies, *, base, width, length=None):
        larger = base * self.factor ** (width / (width - 2))
        return [larger ** (-2 * k / width) for k in range(width // 2)], 1.0


@dataclass(frozen=True, repr=False)
class NTKFixed(Schedule):
    """NTK scaling read as a number system: the stretch is a product of equal steps, one for each pair.

    base' = base factor,   frequency'_k = base'^(-2k/r) / factor^(2/r)

    factor  target length / trained length (unitless, 1 or more)

    The slowest pair is divided by exactly the factor, the fastest by factor^(2/r), where ntk keeps it.
    Source: Su 2023, kexue.fm/archives/9706 ("NTK-RoPE-fixed").
    """

    name = "ntk_fixed"
    example = "ntk_fixed(factor=4)"

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)

    def __call__(self, frequencies, *, base, width, length=None):
        k = torch.arange(width // 2, dtype=frequencies.dtype, device=frequencies.device)
        return frequencies * self.factor ** (-2 * (k + 1) / width), 1.0

    def formula(self, frequencies, *, base, width, length=None):
        first = self.factor ** (2 / width)
        return [(base * self.factor) ** (-2 * k / width) / first for k in range(width // 2)], 1.0


@dataclass(frozen=True, repr=False)
class NTKMixed(Schedule):
    """NTK scaling whose steps shrink towards the slow pairs, between ntk_fixed and linear.

    frequency'_k = frequency_k / exp(a (k+1)^power),   a = ln(factor) / (r/2)^power

    factor  target length / trained length (unitless, 1 or more)
    power   how the stretch is spread: 1 is ntk_fixed, 0 is linear (unitless, 0 or more)

    The slowest pair is divided by exactly the factor for every power.
    Source: Su 2023, kexue.fm/archives/9706 ("NTK-RoPE-mixed", b = 0.625).
    """

    name = "ntk_mixed"
    example = "ntk_mixed(factor=4)"

    factor: float
    power: float = 0.625

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_least(self, "power", 0, "")

    def __call__(self, frequencies, *, base, width, length=None):
        k = torch.arange(width // 2, dtype=frequencies.dtype, device=frequencies.device)
        return frequencies * self.factor ** -(((k + 1) / (width // 2)) ** self.power), 1.0

    def formula(self, frequencies, *, base, width, length=None):
        a = math.log(self.factor) / (width / 2) ** self.power
        return [f / math.exp(a * (k + 1) ** self.power) for k, f in enumerate(frequencies)], 1.0


@dataclass(frozen=True, repr=False)
class DynamicNTK(Schedule):
    """NTK-aware scaling by just as much as each sequence needs; up to the trained length nothing changes.

    base' = base (factor L/trained_length - (factor - 1))^(r/(r-2)),   L = max(horizon, trained_length)

    factor          how fast the base grows with the horizon (unitless, 1 or more)
    trained_length  tokens; a model built from a spec fills in its own

    Qwen-1 is factor=2 with the horizon rounded up to the trained length times a power of two.
    Where it goes wrong: keys turned for one horizon are wrong at another, so they are cached unturned here.
    Raises ValueError for a rotary width r of 2.
    Source: emozilla 2023; `_compute_dynamic_ntk_parameters` of transformers; Peng et al. 2023, arXiv:2309.00071,
    appendix B.2.
    """

    name = "dynamic_ntk"
    example = "dynamic_ntk(factor=2)"
    by_length = True

    factor: float = 1.0
    trained_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_length(self)

    def __call__(self, frequencies, *, base, width, length=None):
        check_two_pairs(self, width)
        k = torch.arange(width // 2, dtype=frequencies.dtype, device=frequencies.device)
        growth = self.factor * self.stretch(length) - (self.factor - 1)
        return frequencies * growth[:, None] ** (-2 * k / (width - 2)), 1.0

    def formula(self, frequencies, *, base, width, length=None):
        trained = self.known_length
        current = max(self.known_horizon(length), trained)
        larger = base * (self.factor * current / trained - (self.factor - 1)) ** (width / (width - 2))
        return [larger ** (-2 * k / width) for k in range(width // 2)], 1.0


@dataclass(frozen=True, repr=False)
class NTKByParts(Schedule):
    """NTK by parts: pairs that turn often stay, pairs that do not turn once are divided by the factor, a ramp between.

    turns_k = trained_length frequency_k / (2 pi)
    keep_k = clamp((turns_k - alpha)/(beta - alpha), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 1

    factor          target length / trained length (unitless, 1 or more)
    trained_length  tokens; a model built from a spec fills in its own
    alpha           turns up to which a pair is divided
    beta            turns from which a pair is kept; equal to alpha it makes a step

    Limit: with a trained length below 201 no pair turns 32 times, so all are stretched.
    Source: Peng et al. 2023, arXiv:2309.00071, section 3.2, definition 2.
    """

    name = "ntk_by_parts"
    example = "ntk_by_parts(factor=4)"

    factor: float
    trained_length: int | None = None
    alpha: float = 1.0
    beta: float = 32.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_length(self)
        if not self.beta >= self.alpha > 0:
            raise ValueError(
                f"{self.name}: needs beta >= alpha > 0 (turns), got alpha={self.alpha} and beta={self.beta}"
            )

    def __call__(self, frequencies, *, base, width, length=None):
        keep = kept_by_turns(frequencies, self.known_length, self.alpha, self.beta)
        return frequencies * (keep + (1 - keep) / self.factor), 1.0

    def formula(self, frequencies, *, base, width, length=None):
        out = []
        for f in frequencies:
            gamma = published_turn_ramp(f, self.known_length, self.alpha, self.beta)
            out.append((1 - gamma) * f / self.factor + gamma * f)
        return out, 1.0


@dataclass(frozen=True, repr=False)
class PartNTK(Schedule):
    """The first NTK by parts, from before the paper: slow pairs linear, middle ones NTK-aware, fast ones as they are.

    mixed = lerp(linear, ntk, keep_1),   frequency' = lerp(mixed, plain, keep_2)

    keep_1 falls from 1 to 0 between the pairs that turn 1.25 and 0.75 times in the trained length, keep_2 between those
    that turn 16 and 2 times; both linear in the pair index, their ends rounded outwards.

    factor          target length / trained length (unitless, 1 or more)
    trained_length  tokens; a model built from a spec fills in its own

    Raises ValueError for a rotary width of 2.
    Source: `LlamaPartNTKScaledRotaryEmbedding` of jquesnelle/yarn 2023; its constants were "found experimentally".
    """

    name = "part_ntk"
    example = "part_ntk(factor=4)"

    factor: float
    trained_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_length(self)

    def __call__(self, frequencies, *, base, width, length=None):
        trained = self.known_length
        aware, _ = NTK(self.factor)(frequencies, base=base, width=width)
        near, far = (
            kept_by_pair(pair_ramp(trained, base=base, width=width, fast=a, slow=b, truncate=True), frequencies)
            for a, b in ((1.25, 0.75), (16, 2))
        )
        mixed = torch.lerp(frequencies / self.factor, aware, near)
        return torch.lerp(mixed, frequencies, far), 1.0

    def formula(self, frequencies, *, base, width, length=None):
        aware, _ = NTK(self.factor).formula(frequencies, base=base, width=width)
        shared = {"base": base, "width": width, "truncate": True}
        near = published_pair_ramp(width // 2, self.known_length, fast=1.25, slow=0.75, **shared)
        far = published_pair_ramp(width // 2, self.known_length, fast=16, slow=2, **shared)
        out = []
        for f, ntk, one, two in zip(frequencies, aware, near, far, strict=True):
            mixed = f / self.factor * (1 - one) + ntk * one
            out.append(mixed * (1 - two) + f * two)
        return out, 1.0


@dataclass(frozen=True, repr=False)
class YaRN(Schedule):
    """YaRN: fast pairs keep their frequency, slow ones are divided by the factor, a ramp between; logits get warmer.

    turns_k = trained_length frequency_k / (2 pi): how often pair k turns in the trained length
    ramp=pairs: pair(n) = r ln(trained_length / (2 pi n)) / (2 ln base): the pair index, not whole, that turns n times
    low = pair(beta_fast), high = pair(beta_slow), kept in [0, r - 1]; truncate: floor of low, ceiling of high
    keep_k = 1 - clamp((k - low)/(high - low), 0, 1)
    ramp=turns: keep_k = clamp((turns_k - beta_slow)/(beta_fast - beta_slow), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 0.1 ln(factor) + 1

    factor            target length / trained length (unitless, 1 or more)
    trained_length    tokens; a model built from a spec fills in its own
    beta_fast         turns from which a pair is kept
    beta_slow         turns up to which a pair is divided
    truncate          whether the ends of ramp=pairs are rounded outwards to whole pairs (gpt-oss: False)
    ramp              "pairs", linear in the pair index, as in every released implementation; "turns", linear in turns,
                      as in the paper. The frequencies differ by up to 3 times
    attention_factor  the temperature, instead of all rules below (logits are multiplied by its square)
    mscale            DeepSeek's two numbers: with g(m) = 0.1 m ln(factor) + 1 the temperature is g(mscale) /
    mscale_all_dim    g(mscale_all_dim), and models of DeepSeek's kind multiply the scale of attention by
                      g(mscale_all_dim)^2 too: that is `scale_factor`
    mscale_rule       what holds when one of the two is missing or 0. "together": both are ignored, and the temperature
                      is g(1), as in transformers and vLLM's YaRN. "apart": each counts for itself, mscale is 1 and
                      mscale_all_dim 0 when missing, as in DeepSeek's own code, vLLM's class for it and Megatron. With
                      factor=40, mscale=0.707, mscale_all_dim=0 the temperature is 1.368888 or 1.260804

    Attention does not multiply its scale by itself, because not all models with these numbers want it (Ministral 3 does
    not): give it `Attention(..., scale=head_dim**-0.5 * schedule.scale_factor)`.

    Where it goes wrong: with a trained length below 201 every pair turns fewer than 32 times, so all are interpolated.
    Where the whole ramp lies outside the pairs (a trained length below 2 pi, or so long for a small base that the last
    pair turns more than beta_fast times) the released code runs it backwards: it keeps what it should divide, or
    divides what it should keep. Here such a ramp does not turn round, so the frequencies are not those of that code.
    Untuned, it works about as well as cropping the context.
    Source: Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4, and the authors' code; DeepSeek-AI 2024,
    arXiv:2405.04434 and its modelling code, for mscale.

    >>> deepseek = YaRN(40, trained_length=4096, mscale=1.0, mscale_all_dim=1.0)
    >>> deepseek.temperature, round(deepseek.scale_factor, 6)
    (1.0, 1.873854)
    """

    name = "yarn"
    example = "yarn(factor=4)"

    factor: float
    trained_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    ramp: str = "pairs"
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    mscale_rule: str = "together"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_length(self)
        check_betas(self, self.beta_fast, self.beta_slow)
        check_word(self, "ramp", RAMPS)
        check_word(self, "mscale_rule", MSCALE_RULES)
        check_least(self, "mscale", 0, "")
        check_least(self, "mscale_all_dim", 0, "")
        check_positive(self, "attention_factor")

    @property
    def temperature(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale_rule == "together" and not (self.mscale and self.mscale_all_dim):
            return yarn_temperature(self.factor)
        mscale = 1.0 if self.mscale is None else self.mscale
        return yarn_temperature(self.factor, mscale) / yarn_temperature(self.factor, self.mscale_all_dim or 0.0)

    @property
    def scale_factor(self) -> float:
        return yarn_temperature(self.factor, self.mscale_all_dim or 0.0) ** 2

    def ends(self, base: float, width: int) -> tuple[float, float]:
        """Between which pair indices ramp=pairs lies."""
        betas = {"fast": self.beta_fast, "slow": self.beta_slow, "truncate": self.truncate}
        return pair_ramp(self.known_length, base=base, width=width, **betas)

    def __call__(self, frequencies, *, base, width, length=None):
        if self.ramp == "turns":
            keep = kept_by_turns(frequencies, self.known_length, self.beta_slow, self.beta_fast)
        else:
            keep = kept_by_pair(self.ends(base, width), frequencies)
        return frequencies * (keep + (1 - keep) / self.factor), self.temperature

    def formula(self, frequencies, *, base, width, length=None):
        trained, slow, fast = self.known_length, self.beta_slow, self.beta_fast
        if self.ramp == "turns":
            keep = [published_turn_ramp(f, trained, slow, fast) for f in frequencies]
        else:
            ramp = {"base": base, "width": width, "fast": fast, "slow": slow, "truncate": self.truncate}
            keep = published_pair_ramp(len(frequencies), trained, **ramp)
        return [k * f + (1 - k) * f / self.factor for f, k in zip(frequencies, keep, strict=True)], self.temperature


def check_betas(schedule: Schedule, fast: float, slow: float) -> None:
    if not fast >= slow > 0:
        raise ValueError(f"{schedule.name}: needs beta_fast >= beta_slow > 0 (turns), got {fast} and {slow}")


@dataclass(frozen=True, repr=False)
class DynamicYaRN(Schedule):
    """YaRN by just as much as each sequence needs; up to the trained length nothing changes.

    as yarn with its ramp over pairs, and factor' = max(factor, horizon / trained_length)

    factor          the least factor (unitless): 1 for a model that was never stretched, else what it was tuned with
    trained_length  tokens, before any stretching; a model built from a spec fills in its own
    beta_fast       turns from which a pair is kept
    beta_slow       turns up to which a pair is divided
    truncate        whether the ramp's ends are rounded outwards to whole pairs

    Where it goes wrong: keys turned for one horizon are wrong at another, so they are cached unturned here.
    Source: Peng et al. 2023, arXiv:2309.00071, appendix B.2; `LlamaDynamicYaRNScaledRotaryEmbedding` of
    jquesnelle/yarn.
    """

    name = "dynamic_yarn"
    example = "dynamic_yarn()"
    by_length = True

    factor: float = 1.0
    trained_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_length(self)
        check_betas(self, self.beta_fast, self.beta_slow)

    def __call__(self, frequencies, *, base, width, length=None):
        betas = {"fast": self.beta_fast, "slow": self.beta_slow, "truncate": self.truncate}
        keep = kept_by_pair(pair_ramp(self.known_length, base=base, width=width, **betas), frequencies)
        factor = self.stretch(length).clamp(min=self.factor)
        return frequencies * (keep + (1 - keep) / factor[:, None]), 0.1 * factor.log() + 1

    def formula(self, frequencies, *, base, width, length=None):
        factor = max(self.factor, self.known_horizon(length) / self.known_length)
        yarn = YaRN(factor, self.known_length, self.beta_fast, self.beta_slow, self.truncate)
        return yarn.formula(frequencies, base=base, width=width)


@dataclass(frozen=True, repr=False)
class Llama3(Schedule):
    """Llama 3's scaling: short wavelengths stay, long ones are multiplied by the factor, a ramp in turns between.

    turns_k = trained_length frequency_k / (2 pi)
    keep_k = clamp((turns_k - low)/(high - low), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 1

    This is ntk_by_parts with alpha = low and beta = high.

    factor          target length / trained length (unitless, 1 or more); 8 in Llama 3.1, 32 in 3.2
    trained_length  tokens; 8192 in Llama 3; a model built from a spec fills in its own
    low             turns up to which a pair is divided
    high            turns from which a pair is kept; equal to low (Llama 4) makes a step

    Source: Meta's Llama 3.1 reference code, `apply_scaling`; Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.2.
    """

    name = "llama3"
    example = "llama3(factor=4)"

    factor: float
    trained_length: int | None = None
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_length(self)
        if not self.high >= self.low > 0:
            raise ValueError(f"llama3: needs high >= low > 0 (turns), got low={self.low} and high={self.high}")

    def __call__(self, frequencies, *, base, width, length=None):
        keep = kept_by_turns(frequencies, self.known_length, self.low, self.high)
        return frequencies * (keep + (1 - keep) / self.factor), 1.0

    def formula(self, frequencies, *, base, width, length=None):
        trained = self.known_length
        out = []
        for frequency in frequencies:
            wavelength = 2 * math.pi / frequency
            if wavelength <= trained / self.high:
                out.append(frequency)
            elif wavelength > trained / self.low:
                out.append(frequency / self.factor)
            else:
                keep = (trained / wavelength - self.low) / (self.high - self.low)
                out.append((1 - keep) * frequency / self.factor + keep * frequency)
        return out, 1.0


@dataclass(frozen=True, repr=False)
class LongRoPE(Schedule):
    """LongRoPE: every pair is divided by a searched number of its own, with one list for short and one for long texts.

    frequency'_k = frequency_k / short_factor_k   up to the trained length,   frequency_k / long_factor_k   beyond
    temperature = sqrt(1 + ln(factor) / ln(trained_length))

    factor            target length / trained length (unitless, 1 or more)
    short_factor      one divisor for each pair, for horizons up to the trained length (unitless, above 0)
    long_factor       one divisor for each pair, for longer horizons
    trained_length    tokens, 2 or more; 4096 in Phi-3; a model built from a spec fills in its own
    attention_factor  the temperature of both lists, instead of the formula
    short_mscale      the temperature of short sequences alone, instead of the formula
    long_mscale       the temperature of long sequences alone, instead of the formula

    How we differ from the paper: it also leaves the first tokens of a sequence unscaled, which no released model does.
    Where it goes wrong: a text that grows past the trained length changes lists, so keys are cached unturned here.
    Raises ValueError for lists that do not hold one number for each pair.
    Source: Ding et al. 2024, arXiv:2402.13753, section 3; Phi-3's modelling code for the temperature.
    """

    name = "longrope"
    example = "longrope(factor=4, short_factor=(1.0, 1.1, 1.3), long_factor=(1.0, 2.0, 4.0))"
    by_length = True

    factor: float
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    trained_length: int | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self)
        check_length(self, 2)
        for option in ("short_factor", "long_factor"):
            given = getattr(self, option)
            if (
                not isinstance(given, (list, tuple))
                or not given
                or not all(checks.is_number(x) and x > 0 for x in given)
            ):
                raise ValueError(
                    f"longrope: {option} must be a list of numbers above 0, one for each pair, got {quoted(given)}"
                )
            # A list could not be the key of a table.
            object.__setattr__(self, option, tuple(given))
        for option in ("attention_factor", "short_mscale", "long_mscale"):
            check_positive(self, option)
        if self.attention_factor is not None and (self.short_mscale or self.long_mscale):
            raise ValueError(
                "longrope: attention_factor is the temperature of both lists, short_mscale and long_mscale are those "
                "of one; give the first or the others"
            )

    def temperatures(self) -> tuple[float, float]:
        """The temperatures of short and of long sequences."""
        both = self.attention_factor
        if both is None:
            both = math.sqrt(1 + math.log(self.factor) / math.log(self.known_length))
        return self.short_mscale or both, self.long_mscale or both

    def __call__(self, frequencies, *, base, width, length=None):
        for option in ("short_factor", "long_factor"):
            if len(getattr(self, option)) != width // 2:
                raise ValueError(
                    f"longrope: {option} must hold one number for each of the {width // 2} pairs of a rotary width "
                    f"of {width}, got {len(getattr(self, option))}"
                )
        long = self.stretch(length) > 1
        short_factor, long_factor = (frequencies.new_tensor(f) for f in (self.short_factor, self.long_factor))
        short_warmth, long_warmth = (frequencies.new_tensor(t) for t in self.temperatures())
        divisors = torch.where(long[:, None], long_factor, short_factor)
        return frequencies / divisors, torch.where(long, long_warmth, short_warmth)

    def formula(self, frequencies, *, base, width, length=None):
        long = self.known_horizon(length) > self.known_length
        divisors = self.long_factor if long else self.short_factor
        own = self.long_mscale if long else self.short_mscale
        usual = self.attention_factor or (1 + math.log(self.factor, self.known_length)) ** 0.5
        return [1 / (c * base ** (2 * k / width)) for k, c in enumerate(divisors)], own or usual


@dataclass(frozen=True, repr=False)
class Resonance(Schedule):
    """Resonance: every wavelength rounded to a whole number of positions, so that the angles of training come back.

    wavelength' = round(2 pi / frequency),   frequency' = 2 pi / wavelength'

    inner  a schedule whose frequencies are rounded, as in the authors' Resonance NTK and Resonance YaRN; none for plain

    Source: Wang et al. 2024, arXiv:2403.00071, section 4; sheryc/resonance_rope.

    >>> Resonance()(torch.tensor([1.0, 0.1]), base=100, width=4)[0] / (2 * torch.pi / torch.tensor([6.0, 63.0]))
    tensor([1., 1.])
    """

    name = "resonance"
    example = "resonance()"

    inner: Schedule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "by_length", self.inner is not None and self.inner.by_length)

    def __call__(self, frequencies, *, base, width, length=None):
        frequencies, temperature = inside(self.inner, frequencies, base, width, length)
        return 2 * math.pi / (2 * math.pi / frequencies).round(), temperature

    def formula(self, frequencies, *, base, width, length=None):
        temperature = 1.0
        if self.inner is not None:
            frequencies, temperature = self.inner.formula(frequencies, base=base, width=width, length=length)
        return [2 * math.pi / round(2 * math.pi / f) if f else 0.0 for f in frequencies], temperature

    @property
    def scale_factor(self) -> float:
        return 1.0 if self.inner is None else self.inner.scale_factor

    @property
    def short_length(self) -> int:
        return self.known_length if self.inner is None else self.inner.short_length

    def with_trained_length(self, trained_length: int) -> "Schedule":
        return self if self.inner is None else replace(self, inner=self.inner.with_trained_length(trained_length))


@dataclass(frozen=True, repr=False)
class Clipped(Schedule):
    """Clipped RoPE ("CoPE" of 2026): the slowest pairs, which never complete a turn in training, are faded out.

    frequency'_k = frequency_k (1 + cos(pi j/(pairs - 1)))/2   for the j-th of the slowest pairs, j = 0..pairs-1

    The first of them keeps its frequency and the last stands still: it carries content without position.

    pairs           how many are faded; the paper's Llama 3 has 20 of 64. None: all whose plain wavelength exceeds the
                    trained length, which is our choice (as in mlx-lm, pull request 1387)
    trained_length  tokens; a model built from a spec fills in its own; read only when `pairs` is None
    soft            whether they fade; False stops all of them ("HardClip"), whose sharp edge rings in the logits
    inner           a schedule that comes first; none for plain frequencies

    Limit: made for continued training after a change of base; not to be mistaken for CoPE of 2024, the contextual one.
    Source: Li, Ren, Yuille, Wang 2026, arXiv:2602.05258, and their code, hrlics/CoPE.
    """

    name = "clipped"
    example = "clipped(pairs=2)"

    pairs: int | None = None
    trained_length: int | None = None
    soft: bool = True
    inner: Schedule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self)
        check_least(self, "pairs", 0, "")
        object.__setattr__(self, "by_length", self.inner is not None and self.inner.by_length)

    def __call__(self, frequencies, *, base, width, length=None):
        total = width // 2
        if self.pairs is None:
            count = sum(2 * math.pi * base ** (2 * k / width) > self.known_length for k in range(total))
        else:
            count = min(self.pairs, total)
        taper = torch.zeros(count, dtype=frequencies.dtype, device=frequencies.device)
        if self.soft:
            j = torch.arange(count, dtype=frequencies.dtype, device=frequencies.device)
            taper = (1 + (math.pi * j / max(count - 1, 1)).cos()) / 2
        keep = torch.cat((torch.ones_like(frequencies[: total - count]), taper))
        frequencies, temperature = inside(self.inner, frequencies, base, width, length)
        return frequencies * keep, temperature

    def formula(self, frequencies, *, base, width, length=None):
        slow = [f for f in frequencies if self.pairs is None and 2 * math.pi / f > self.known_length]
        count = len(slow) if self.pairs is None else min(self.pairs, len(frequencies))
        start, temperature = len(frequencies) - count, 1.0
        if self.inner is not None:
            frequencies, temperature = self.inner.formula(frequencies, base=base, width=width, length=length)
        out = list(frequencies)
        for j in range(count):
            fade = 0.5 * (1 + math.cos(math.pi * j / (count - 1))) if count > 1 else 1.0
            out[start + j] *= fade if self.soft else 0.0
        return out, temperature

    @property
    def scale_factor(self) -> float:
        return 1.0 if self.inner is None else self.inner.scale_factor

    @property
    def short_length(self) -> int:
        return self.known_length if self.inner is None else self.inner.short_length

    def with_trained_length(self, trained_length: int) -> "Schedule":
        own = trained_length if self.trained_length is None and self.pairs is None else self.trained_length
        inner = None if self.inner is None else self.inner.with_trained_length(trained_length)
        return replace(self, trained_length=own, inner=inner)


def inside(
    inner: Schedule | None, frequencies: Tensor, base: float, width: int, length: Tensor | None
) -> tuple[Tensor, float | Tensor]:
    """What the schedule inside another gives; without one, the frequencies as they are."""
    return (frequencies, 1.0) if inner is None else inner(frequencies, base=base, width=width, length=length)


SCHEDULES: dict[str, type[Schedule]] = {
    cls.name: cls
    for cls in (
        Linear,
        DynamicLinear,
        NTK,
        NTKFixed,
        NTKMixed,
        DynamicNTK,
        NTKByParts,
        PartNTK,
        YaRN,
        DynamicYaRN,
        Llama3,
        LongRoPE,
        Resonance,
        Clipped,
    )
}
"""The schedules by their names in specs."""


def schedule_of(given: Schedule | str | None) -> Schedule | None:
    """The schedule that a caller gave: one of these, or as it is written in a spec.

    Raises ValueError for what is neither, and for options that it does not have.

    >>> schedule_of("linear(factor=2)")
    linear(factor=2)
    """
    found = value_of(expression(given, "schedule"), given) if isinstance(given, str) else given
    if found is not None and not isinstance(found, Schedule):
        raise ValueError(f"schedule must be one of posenc.schedules, such as linear(factor=4), got {quoted(given)}")
    return found


def value_of(tree: ast.expr, spec: str) -> Any:
    """The value of an option as it is written in a spec: a plain value, a word, or a schedule."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return named(tree.func.id, tree, spec)
    if isinstance(tree, ast.Name):
        # A bare word is a string, so that shells need no quotes: rotary(layout=interleaved).
        return tree.id
    try:
        value = ast.literal_eval(tree)
        value = tuple(value) if isinstance(value, list) else value
        # Equal specs share one encoding, so a value has to be hashable.
        hash(value)
    except (ValueError, TypeError):
        raise ValueError(
            f"{written(tree)} in {quoted(spec)} is not a plain value: use numbers, words or tuples"
        ) from None
    return value


def named(name: str, tree: ast.Call, spec: str) -> Schedule:
    if name not in SCHEDULES:
        raise ValueError(
            f"no schedule named {quoted(name)}; there are: {', '.join(SCHEDULES)}{near(name, SCHEDULES.keys())}"
        )
    options = {word.arg or "**": value_of(word.value, spec) for word in tree.keywords}
    if len(options) != len(tree.keywords):
        raise ValueError(f"an option stands twice in {written(tree)}; give it once")
    parameters = inspect.signature(SCHEDULES[name]).parameters
    for word in options:
        if word not in parameters:
            raise ValueError(
                f"{name} has no option {quoted(word)}; it has: {', '.join(parameters)}{near(word, parameters.keys())}"
            )
    missing = [word for word, one in parameters.items() if one.default is one.empty and word not in options]
    if tree.args or missing:
        wanted = f"needs {' and '.join(missing)}" if missing else "takes its options"
        raise ValueError(f"{name} {wanted} by name, as in yarn(factor=4); got {written(tree)}")
    return SCHEDULES[name](**options)
