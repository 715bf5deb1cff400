"""The wavelengths of rotary (RoPE), before and after its schedule, with the options of the schedule."""

import math
from dataclasses import fields
from typing import Any

from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.encodings.rotations import plain_frequencies
from posenc.schedules import Schedule


def rotary_spectra(encoding: Encoding, shape: Shape) -> list[dict[str, Any]] | None:
    """Return an entry for each part that can have a schedule; None if there is no such part."""
    return [rotary_entry(part, shape) for part in parts_of(encoding) if hasattr(part, "schedule")] or None


def rotary_entry(rotary: Any, shape: Shape) -> dict[str, Any]:
    """Return the entry of a rotary: wavelengths in positions, infinite for a pair that never rotates.

    `wavelengths` and `temperature` of a schedule that depends on the horizon are those at the trained length.
    """
    frequencies, temperature = rotary.spectrum()
    frequencies, schedule = frequencies.flatten(), rotary.schedule
    return {
        "spec": str(rotary),
        "base": rotary.base,
        "width": 2 * len(frequencies),
        "trained_length": getattr(schedule, "trained_length", None) or shape.max_len,
        "schedule": None if schedule is None else schedule_options(schedule),
        "by_horizon": schedule is not None and schedule.by_horizon,
        "plain": (2 * math.pi / plain_frequencies(rotary.base, 2 * len(frequencies))).tolist(),
        "wavelengths": (2 * math.pi / frequencies).tolist(),
        "temperature": float(temperature),
    }


def schedule_options(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule's name in specs and all its options, nested for a schedule within it."""
    values = {option.name: getattr(schedule, option.name) for option in fields(schedule)}
    options = {name: schedule_options(x) if isinstance(x, Schedule) else x for name, x in values.items()}
    return {"name": schedule.spec_name, **options}
