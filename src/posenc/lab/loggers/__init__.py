"""Loggers of runs: one file each, whose name is the name in specs.

Your own logger is named by its path, `path/to/mine.py:Mine(option=3)`; `Logger` lists its methods.
"""

import warnings
from collections.abc import Sequence
from typing import Any

from posenc.foreign import quote
from posenc.foreign.text import error_text
from posenc.lab.loggers._logger import Logger, scores_of
from posenc.specs.registry import Registry

__all__ = ["LOGGERS", "Logger", "LoggerGroup", "loggers_of", "scores_of"]

LOGGERS = Registry(__name__, Logger, "posenc.lab.loggers.Logger", 'wandb(project="posenc")')
"""The loggers that ship, by their names in specs; each is imported on first use."""


def loggers_of(names: Sequence[str]) -> list[Logger]:
    """The loggers of some specs.

    Raises ValueError for an unknown or repeated logger, and where its library is not installed.

    >>> loggers_of([])
    []
    """
    loggers = [LOGGERS.read(name) for name in names]
    for place, (name, logger) in enumerate(zip(names, loggers, strict=True)):
        if not isinstance(logger, Logger):
            raise ValueError(
                f"a logger must be one of {', '.join(LOGGERS)}, or path/to/mine.py:Mine, got {quote(name)}"
            )
        if name in names[:place]:
            raise ValueError(f"the logger {quote(name)} is named twice; name it once")
    return loggers


class LoggerGroup:
    """Several loggers as one. A logger that raises is dropped with a warning, and the run continues."""

    def __init__(self, loggers: Sequence[Logger] = ()) -> None:
        self.loggers = list(loggers)

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of each logger: begin, point, sample or end."""
        for logger in tuple(self.loggers):
            try:
                getattr(logger, method)(*arguments)
            # Another tool may raise anything, and it must not cost hours of training.
            except Exception as error:
                self.loggers.remove(logger)
                warnings.warn(
                    f"the logger {logger} fails and is left out from now on; the run goes on: {error_text(error)}",
                    RuntimeWarning,
                    stacklevel=3,
                )
