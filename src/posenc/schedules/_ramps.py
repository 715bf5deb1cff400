"""Ramps: which share of its frequency a pair keeps, by its index or by how often it turns in the trained length.

Each as it is computed, and as published in scalars.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posenc.schedules._schedule import Schedule


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


def check_turns(schedule: Schedule, slow: str, fast: str) -> None:
    """Raises ValueError unless the options that are the ends of a ramp in turns can be."""
    first, last = getattr(schedule, slow), getattr(schedule, fast)
    if not last >= first > 0:
        raise ValueError(
            f"{schedule.spec_name}: needs {fast} >= {slow} > 0 (turns), got {slow}={first} and {fast}={last}"
        )


@dataclass(frozen=True)
class RampInTurns(Schedule):
    """Base of those that divide slow pairs by the factor and keep fast ones, with a ramp in turns between.

    A subclass has two more options, which `ends` names: the turns up to which a pair is divided, and those from which
    it is kept.
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
        kept = [published_turn_ramp(f, self.known_length, *self.turns()) for f in frequencies]
        return [(1 - keep) * f / self.factor + keep * f for f, keep in zip(frequencies, kept, strict=True)], 1.0
