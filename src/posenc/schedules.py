"""Rotary frequency schedules: functions from plain frequencies to (frequencies, temperature).

They stretch a trained rotary model to longer contexts. The temperature multiplies cosines and sines, and so logits by
its square. Each one also states its paper's scalar formula, which the contract holds it to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """Base of the schedules: frozen numbers, printed as they are written in a spec."""

    def __call__(self, frequencies: Tensor, *, base: float, width: int) -> tuple[Tensor, float]:
        """The new frequencies (radians per position, float64) and the temperature, from plain ones base^(-2k/width)."""
        raise NotImplementedError

    def formula(self, frequencies: Sequence[float], *, base: float, width: int) -> tuple[list[float], float]:
        """The same, pair by pair in scalars, as published."""
        raise NotImplementedError

    def with_trained_length(self, trained_length: int) -> "Schedule":
        """The same schedule with the trained length filled in, where it needs one and none was given."""
        return self

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__.lower()}({', '.join(given)})"


def check_factor(schedule: Schedule, factor: float) -> None:
    if not factor >= 1:
        raise ValueError(
            f"{type(schedule).__name__.lower()}: factor must be 1 or more "
            f"(target length / trained length), got {factor}"
        )


def known_length(schedule: Schedule, trained_length: int | None) -> int:
    """The trained length; raises ValueError when it is unknown."""
    if trained_length is None:
        name = type(schedule).__name__.lower()
        raise ValueError(f"{name} compares wavelengths with the trained length; give {name}(..., trained_length=4096)")
    return trained_length


def check_length(schedule: Schedule, trained_length: int | None) -> None:
    if trained_length is not None and trained_length < 1:
        raise ValueError(
            f"{type(schedule).__name__.lower()}: trained_length must be 1 or more tokens, got {trained_length}"
        )


@dataclass(frozen=True, repr=False)
class Linear(Schedule):
    """Position interpolation: every frequency divided by the factor, as if positions were squeezed.

    frequency' = frequency / factor

    factor  target length / trained length (unitless, 1 or more)

    Limit: needs fine-tuning; without it the short range suffers at once.
    Source: Chen et al. 2023, arXiv:2306.15595, section 2.3.

    >>> Linear(factor=2)(torch.tensor([1.0, 0.1]), base=100, width=4)[0]
    tensor([0.5000, 0.0500])
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor(self, self.factor)

    def __call__(self, frequencies: Tensor, *, base: float, width: int) -> tuple[Tensor, float]:
        return frequencies / self.factor, 1.0

    def formula(self, frequencies: Sequence[float], *, base: float, width: int) -> tuple[list[float], float]:
        return [f / self.factor for f in frequencies], 1.0


@dataclass(frozen=True, repr=False)
class NTK(Schedule):
    """NTK-aware scaling: a larger base; the fastest pair keeps its frequency, the slowest is divided by the factor.

    base' = base factor^(r/(r-2))

    factor  target length / trained length (unitless, 1 or more); without tuning it has to exceed that ratio

    Raises ValueError for a rotary width r of 2, where one pair would have to be both.
    Source: bloc97 2023; stated in Peng et al. 2023, arXiv:2309.00071, definition 1.
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor(self, self.factor)

    def __call__(self, frequencies: Tensor, *, base: float, width: int) -> tuple[Tensor, float]:
        if width < 4:
            raise ValueError(
                f"ntk keeps the fastest pair and stretches the slowest, which takes two pairs; "
                f"got a rotary width of {width}"
            )
        k = torch.arange(width // 2, dtype=frequencies.dtype)
        return frequencies * self.factor ** (-2 * k / (width - 2)), 1.0

    def formula(self, frequencies: Sequence[float], *, base: float, width: int) -> tuple[list[float], float]:
        larger = base * self.factor ** (width / (width - 2))
        return [larger ** (-2 * k / width) for k in range(width // 2)], 1.0


@dataclass(frozen=True, repr=False)
class YaRN(Schedule):
    """YaRN: fast pairs keep their frequency, slow ones are divided by the factor, a ramp between; logits get warmer.

    turns_k = trained_length frequency_k / (2 pi): how often pair k turns in the trained length
    pair(n) = r ln(trained_length / (2 pi n)) / (2 ln base): the pair index, not whole, that turns n times
    low = pair(beta_fast), high = pair(beta_slow), kept in [0, r - 1]; truncate: floor of low, ceiling of high
    keep_k = 1 - clamp((k - low)/(high - low), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 0.1 ln(factor) + 1

    factor            target length / trained length (unitless, 1 or more)
    trained_length    tokens; a model built from a spec fills in its own
    beta_fast         turns from which a pair is kept
    beta_slow         turns up to which a pair is divided
    truncate          whether the ramp's ends are rounded outwards to whole pairs (gpt-oss: False)
    attention_factor  another temperature than the default (logits are multiplied by its square)

    How we differ from the paper: its ramp is linear in turns; every released implementation's is linear in the pair
    index, and so is this one. The frequencies differ by up to 3 times.
    Limit: with a trained length below 201 every pair turns fewer than 32 times, so all are interpolated.
    Source: Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4, and the authors' code.
    """

    factor: float
    trained_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_factor(self, self.factor)
        check_length(self, self.trained_length)
        if not self.beta_fast >= self.beta_slow > 0:
            raise ValueError(
                f"yarn: needs beta_fast >= beta_slow > 0 (turns), got {self.beta_fast} and {self.beta_slow}"
            )
        if self.attention_factor is not None and not self.attention_factor > 0:
            raise ValueError(f"yarn: attention_factor must be above 0, got {self.attention_factor}")

    def with_trained_length(self, trained_length: int) -> "YaRN":
        return replace(self, trained_length=trained_length) if self.trained_length is None else self

    @property
    def temperature(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor

    def ramp(self, base: float, width: int) -> tuple[float, float]:
        """Between which pair indices the ramp lies."""
        length = known_length(self, self.trained_length)
        low, high = (
            width * math.log(length / (2 * math.pi * n)) / (2 * math.log(base))
            for n in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # Both ends: with one alone, a ramp that lies wholly outside would run backwards.
        low, high = (min(max(end, 0), width - 1) for end in (low, high))
        return low, high if high != low else high + 0.001

    def __call__(self, frequencies: Tensor, *, base: float, width: int) -> tuple[Tensor, float]:
        low, high = self.ramp(base, width)
        k = torch.arange(width // 2, dtype=frequencies.dtype)
        keep = 1 - ((k - low) / (high - low)).clamp(0, 1)
        return frequencies * (keep + (1 - keep) / self.factor), self.temperature

    def formula(self, frequencies: Sequence[float], *, base: float, width: int) -> tuple[list[float], float]:
        length = known_length(self, self.trained_length)
        ends = []
        for turns, outwards in ((self.beta_fast, math.floor), (self.beta_slow, math.ceil)):
            pair = math.log(length / (turns * 2 * math.pi), base) * width / 2
            ends.append(outwards(pair) if self.truncate else pair)
        low, high = (max(0, min(end, width - 1)) for end in ends)
        out = []
        for k, frequency in enumerate(frequencies):
            divided = min(max((k - low) / ((high - low) or 0.001), 0), 1)
            out.append((1 - divided) * frequency + divided * frequency / self.factor)
        return out, self.temperature


@dataclass(frozen=True, repr=False)
class Llama3(Schedule):
    """Llama 3's scaling: short wavelengths stay, long ones are multiplied by the factor, a ramp in turns between.

    turns_k = trained_length frequency_k / (2 pi)
    keep_k = clamp((turns_k - low)/(high - low), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 1

    This is NTK-by-parts with the paper's ramp (arXiv:2309.00071, definition 2) for alpha = low, beta = high.

    factor          target length / trained length (unitless, 1 or more); 8 in Llama 3.1, 32 in 3.2
    trained_length  tokens; 8192 in Llama 3; a model built from a spec fills in its own
    low             turns up to which a pair is divided
    high            turns from which a pair is kept; equal to low (Llama 4) makes a step

    Source: Meta's Llama 3.1 reference code, `apply_scaling`; Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.2.
    """

    factor: float
    trained_length: int | None = None
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        check_factor(self, self.factor)
        check_length(self, self.trained_length)
        if not self.high >= self.low > 0:
            raise ValueError(f"llama3: needs high >= low > 0 (turns), got low={self.low} and high={self.high}")

    def with_trained_length(self, trained_length: int) -> "Llama3":
        return replace(self, trained_length=trained_length) if self.trained_length is None else self

    def __call__(self, frequencies: Tensor, *, base: float, width: int) -> tuple[Tensor, float]:
        turns = known_length(self, self.trained_length) * frequencies / (2 * math.pi)
        if self.high == self.low:
            keep = (turns >= self.low).to(frequencies.dtype)
        else:
            keep = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (keep + (1 - keep) / self.factor), 1.0

    def formula(self, frequencies: Sequence[float], *, base: float, width: int) -> tuple[list[float], float]:
        length = known_length(self, self.trained_length)
        out = []
        for frequency in frequencies:
            wavelength = 2 * math.pi / frequency
            if wavelength <= length / self.high:
                out.append(frequency)
            elif wavelength > length / self.low:
                out.append(frequency / self.factor)
            else:
                keep = (length / wavelength - self.low) / (self.high - self.low)
                out.append((1 - keep) * frequency / self.factor + keep * frequency)
        return out, 1.0


SCHEDULES: dict[str, type[Schedule]] = {cls.__name__.lower(): cls for cls in (Linear, NTK, YaRN, Llama3)}
"""The schedules by their names in specs."""
