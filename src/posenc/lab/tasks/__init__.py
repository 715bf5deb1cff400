"""Tasks to train on: one file each, whose name is the name in specs, as in `copy(symbols=10)`.

One of your own is written by its path, `path/to/mine.py:Mine(option=3)`; `Task` says what it has to have.
"""

from collections.abc import Collection
from pathlib import Path

from posenc.lab.tasks._of_text import OfText
from posenc.lab.tasks._symbols import BOS, END, LETTERS, SEPARATOR, Said, Symbols, prompt_and_answer, random_symbols
from posenc.lab.tasks._task import READERS, Batch, Task
from posenc.specs.registry import Registry

__all__ = [
    "BOS", "END", "LETTERS", "READERS", "SEPARATOR", "TASKS", "Batch", "OfText", "Said", "Symbols", "Task",
    "prompt_and_answer", "random_symbols", "task_of",
]  # fmt: skip

TASKS = Registry(__name__, Task, "posenc.lab.tasks.Task", "copy(symbols=10)")
"""The tasks that ship, by their names in specs; each is imported when it is first asked for."""


def task_of(given: Task | str, own: Collection[str | Path] | None = None) -> Task:
    """The task that a caller gave: one of these, or as it is written in a spec.

    own  the files whose code may be run, for a spec that was read from elsewhere; None for one that a person gave

    Raises ValueError for what is neither, and for options that it does not have; CannotRead for code of other files.

    >>> task_of("copy(symbols=10)")
    copy(symbols=10)
    """
    return TASKS.given(given, own)
