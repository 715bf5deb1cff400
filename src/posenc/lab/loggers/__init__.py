"""Loggers, which are told of a run while it goes on: one file each, whose name is the name in specs.

One of your own is written by its path, `path/to/mine.py:Mine(option=3)`; `Logger` says what it has to have.
"""

import warnings
from collections.abc import Sequence
from typing import Any

from posenc.foreign import quoted
from posenc.foreign.text import told
from posenc.lab.loggers._logger import Logger, scores_of
from posenc.specs.registry import Registry

__all__ = ["LOGGERS", "Logger", "Together", "loggers_of", "scores_of"]

LOGGERS = Registry(__name__, Logger, "posenc.lab.loggers.Logger", 'wandb(project="posenc")')
"""The loggers that ship, by their names in specs; each is imported when it is first asked for."""


def loggers_of(names: Sequence[str]) -> list[Logger]:
    """The loggers that a person has named, each as it is written in a spec.

    Raises ValueError for what is no logger or stands twice, and where the library that one needs is not installed.

    >>> loggers_of([])
    []
    """
    found = [LOGGERS.read(name) for name in names]
    for place, (name, logger) in enumerate(zip(names, found, strict=True)):
        if not isinstance(logger, Logger):
            raise ValueError(
                f"a logger must be one of {', '.join(LOGGERS)}, or path/to/mine.py:Mine, got {quoted(name)}"
            )
        if name in names[:place]:
            raise ValueError(f"the logger {quoted(name)} is named twice; name it once")
    return found


class Together:
    """Several loggers as one. One that raises is left out from then on, with a warning, and the run goes on."""

    def __init__(self, loggers: Sequence[Logger] = ()) -> None:
        self.loggers = list(loggers)

    def tell(self, method: str, *given: Any) -> None:
        """Call a method of each logger: begin, point, sample or end."""
        for logger in tuple(self.loggers):
            try:
                getattr(logger, method)(*given)
            # What another tool raises may be anything, and hours of training are not to be lost for it.
            except Exception as error:
                self.loggers.remove(logger)
                warnings.warn(
                    f"the logger {logger} fails and is left out from now on; the run goes on: {told(error)}",
                    RuntimeWarning,
                    stacklevel=3,
                )
