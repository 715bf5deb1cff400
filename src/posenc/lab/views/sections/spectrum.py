"""The wavelengths of rotary, before and after its schedule, with the numbers of the schedule."""

import math
from dataclasses import fields
from typing import Any

from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.encodings.rotations import plain_frequencies
from posenc.schedules import Schedule


def of(encoding: Encoding, shape: Shape) -> list[dict[str, Any]] | None:
    """One entry for each part that has a base and a schedule or none; None where there is no such part."""
    return [entry(part, shape) for part in parts_of(encoding) if hasattr(part, "schedule")] or None


def entry(rotary: Any, shape: Shape) -> dict[str, Any]:
    """One rotary: wavelengths in positions, infinite where a pair stands still.

    `wavelengths` and `temperature` of a schedule that depends on the horizon are those at the trained length.
    """
    frequencies, temperature = rotary.spectrum()
    frequencies, schedule = frequencies.flatten(), rotary.schedule
    return {
        "spec": str(rotary),
        "base": rotary.base,
        "width": 2 * len(frequencies),
        "trained_length": getattr(schedule, "trained_length", None) or shape.max_len,
        "schedule": None if schedule is None else options(schedule),
        "by_horizon": schedule is not None and schedule.by_horizon,
        "plain": (2 * math.pi / plain_frequencies(rotary.base, 2 * len(frequencies))).tolist(),
        "wavelengths": (2 * math.pi / frequencies).tolist(),
        "temperature": float(temperature),
    }


def options(schedule: Schedule) -> dict[str, Any]:
    """A schedule's name in specs and all its options; those of one within it stand within it."""
    given = {one.name: getattr(schedule, one.name) for one in fields(schedule)}
    inside = {name: options(value) if isinstance(value, Schedule) else value for name, value in given.items()}
    return {"name": schedule.spec_name, **inside}
