"""Rotary frequency schedules: functions from plain frequencies to (frequencies, temperature).

They stretch a trained rotary (RoPE) model to longer contexts. Each is one file, named in specs by its file name:
`yarn(factor=4)` is `YaRN(4)` of yarn.py. To add one, follow docs/guides/own-schedule.md; linear.py is the shortest.
"""

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any

from posenc.foreign import quote
from posenc.schedules._schedule import Schedule
from posenc.specs.registry import Registry

__all__ = ["SCHEDULES", "Schedule", "schedule_of", "value_of"]

SCHEDULES = Registry(__name__, Schedule, "posenc.schedules.Schedule", "yarn(factor=4)")
"""The schedules of posenc, by their names in specs; each is imported at its first use."""


def schedule_of(value: Schedule | str | None, trusted_files: Collection[str | Path] | None = None) -> Schedule | None:
    """Return a schedule, which the caller gives as an object or as a spec.

    trusted_files  the files whose code a spec from a file may run; None for a spec that the caller wrote

    Raises ValueError for any other value and for unknown options; CannotRead for code of other files.

    >>> schedule_of("linear(factor=2)")
    linear(factor=2)
    """
    schedule = SCHEDULES.read(value, trusted_files) if isinstance(value, str) else value
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ValueError(f"schedule must be one of posenc.schedules, such as linear(factor=4), got {quote(value)}")
    return schedule


def value_of(tree: ast.expr, spec: str) -> Any:
    """Return the value of an encoding's option in a spec: a plain value, a word, or a schedule."""
    return SCHEDULES.value(tree, spec)


def __getattr__(name: str) -> Any:
    """Import and return the schedule of a class name."""
    return SCHEDULES.by_class_name(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *SCHEDULES.class_names])
