"""Tasks to train on: one file each, whose name is the name in specs, as in `copy(symbols=10)`.

Your own task is named by its path, `path/to/mine.py:Mine(option=3)`; `Task` lists what it needs.
"""

from collections.abc import Collection
from pathlib import Path

from posenc.lab.tasks._of_text import TextTask
from posenc.lab.tasks._symbols import BOS, END, LETTERS, SEPARATOR, Rewrite, Symbols, prompt_and_answer, random_symbols
from posenc.lab.tasks._task import READERS, Batch, Task
from posenc.specs.registry import Registry

__all__ = [
    "BOS", "END", "LETTERS", "READERS", "SEPARATOR", "TASKS", "Batch", "Rewrite", "Symbols", "Task", "TextTask",
    "prompt_and_answer", "random_symbols", "task_of",
]  # fmt: skip

TASKS = Registry(__name__, Task, "posenc.lab.tasks.Task", "copy(symbols=10)")
"""The tasks that ship, by their names in specs; each is imported on first use."""


def task_of(task: Task | str, trusted_files: Collection[str | Path] | None = None) -> Task:
    """The task of a spec, or the task itself.

    trusted_files  the files whose code may be run, for a spec from a file; None for a spec that the user typed

    Raises ValueError for anything else, and for unknown options; CannotRead for code of other files.

    >>> task_of("copy(symbols=10)")
    copy(symbols=10)
    """
    return TASKS.resolve(task, trusted_files)
