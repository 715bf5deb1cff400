"""Rotary frequency schedules: functions from plain frequencies to (frequencies, temperature).

They stretch a trained rotary model to longer contexts. One file each, and the file's name is the name in specs:
`yarn(factor=4)` is `YaRN(4)` of yarn.py. One of your own is written by its path: `path/to/mine.py:Mine(factor=4)`.
"""

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Any

from posenc.foreign import quoted
from posenc.schedules._schedule import Schedule
from posenc.specs.registry import Registry

__all__ = ["SCHEDULES", "Schedule", "schedule_of", "value_of"]

SCHEDULES = Registry(__name__, Schedule, "posenc.schedules.Schedule", "yarn(factor=4)")
"""The schedules that ship, by their names in specs; each is imported when it is first asked for."""


def schedule_of(given: Schedule | str | None, own: Collection[str | Path] | None = None) -> Schedule | None:
    """The schedule that a caller gave: one of these, or as it is written in a spec.

    own  the files whose code may be run, for a spec that was read from elsewhere; None for one that a person gave

    Raises ValueError for what is neither, and for options that it does not have; CannotRead for code of other files.

    >>> schedule_of("linear(factor=2)")
    linear(factor=2)
    """
    schedule = SCHEDULES.read(given, own) if isinstance(given, str) else given
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ValueError(f"schedule must be one of posenc.schedules, such as linear(factor=4), got {quoted(given)}")
    return schedule


def value_of(tree: ast.expr, spec: str) -> Any:
    """The value of an encoding's option as it is written in a spec: a plain value, a word, or a schedule."""
    return SCHEDULES.value(tree, spec)


def __getattr__(name: str) -> Any:
    """A schedule by its class name, imported now."""
    return SCHEDULES.by_class_name(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *SCHEDULES.class_names])
