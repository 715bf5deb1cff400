"""Ramps: the share of its frequency that a pair keeps, by its index or its turns.

Turns are counted within the trained length. Each ramp is here twice: as it is computed, and in scalars as published.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posenc.schedules._schedule import Schedule


def pair_ramp(length: int, *, base: float, width: int, fast: float, slow: float, truncate: bool) -> tuple[float, float]:
    """Return the fractional pair indices that turn `fast` and `slow` times in `length`; truncate rounds outwards."""
    low, high = (width * math.log(length / (2 * math.pi * n)) / (2 * math.log(base)) for n in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    # Each end is clamped on both sides. The released code clamps one side each, so that a ramp outside runs backwards.
    low, high = (min(max(end, 0), width - 1) for end in (low, high))
    return low, high if high != low else high + 0.001


def kept_by_pair(ends: tuple[float, float], like: Tensor) -> Tensor:
    """Return the share that each pair keeps, linear in its index. It is 1 up to the first end, 0 from the second."""
    low, high = ends
    k = torch.arange(like.shape[-1], dtype=like.dtype, device=like.device)
    return 1 - ((k - low) / (high - low)).clamp(0, 1)


def kept_by_turns(frequencies: Tensor, length: int, low: float, high: float) -> Tensor:
    """Return the share that each pair keeps, linear in turns. It is 0 up to `low` turns in `length`, 1 from `high`."""
    turns = length * frequencies / (2 * math.pi)
    if high == low:
        return (turns >= low).to(frequencies.dtype)
    return ((turns - low) / (high - low)).clamp(0, 1)


def published_pair_ramp(
    pairs: int, length: float, *, base: float, width: int, fast: float, slow: float, truncate: bool
) -> list[float]:
    """Return the same shares in scalars, as in the released implementations.

    These clamp each end on one side only, so that a ramp which ends before the first pair, or begins after the last,
    runs backwards. That is an accident: here all pairs are then past the ramp, or all before it.
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
    """Return the share that one pair keeps, in scalars, from its wavelength and the trained length."""
    wavelength = 2 * math.pi / frequency
    if wavelength <= length / high:
        return 1.0
    if wavelength > length / low:
        return 0.0
    return (length / wavelength - low) / (high - low)


def check_turns(schedule: Schedule, slow: str, fast: str) -> None:
    """Raise ValueError unless the two ends of a ramp in turns are valid."""
    first, last = getattr(schedule, slow), getattr(schedule, fast)
    if not last >= first > 0:
        raise ValueError(
            f"{schedule.spec_name}: needs {fast} >= {slow} > 0 (turns), got {slow}={first} and {fast}={last}"
        )


@dataclass(frozen=True)
class RampInTurns(Schedule):
    """Base of schedules that divide slow pairs and keep fast ones, with a ramp in turns.

    A subclass has two more options, which `ends` names: the turns up to which a pair is divided by the factor, and the
    turns from which it is kept.
    """

    ends: ClassVar[tuple[str, str]]

    factor: float
    trained_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_turns(self, *self.ends)

    def turns(self) -> tuple[float, float]:
        slow, fast = (getattr(self, end) for end in self.ends)
        return slow, fast

    def __call__(self, frequencies, *, base, width, horizon=None):
        keep = kept_by_turns(frequencies, self.known_length, *self.turns())
        return frequencies * (keep + (1 - keep) / self.factor), 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        shares = [published_turn_ramp(f, self.known_length, *self.turns()) for f in frequencies]
        return [(1 - keep) * f / self.factor + keep * f for f, keep in zip(frequencies, shares, strict=True)], 1.0
