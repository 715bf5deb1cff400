"""What a logger is: told of a run while it goes on, and never in its way."""

import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.specs.registry import Named

LETTERS = 40
"""Of a prompt, in the name of its samples: file systems and Weights & Biases refuse long names."""


@dataclass(kw_only=True, eq=False)
class Logger(Named):
    """Hand on what happens in a run, to a file or to another tool. Its methods are called in this order.

        begin(experiment, folder)   once, before the first step: the settings, and the folder of this run alone
        point(step, values)         at every point of the learning curve: names to numbers, such as loss (nats)
        sample(step, prompt, text)  where samples are asked for: what the model makes of a prompt at that point
        end(record)                 once, when the run has been measured: its whole record

    One of your own is a subclass in a file of yours, `--log path/to/mine.py:Mine`; what it does not need it leaves
    out. Options are the fields of a dataclass: `--log "path/to/mine.py:Mine(every=10)"`. A library that it needs is
    imported when it is made, so that a missing one is told of before anything is trained. Whatever it raises later
    costs the log, and not the run.

    >>> from posenc.lab.loggers import loggers_of
    >>> loggers_of(["jsonl"])
    [jsonl()]
    """

    def begin(self, experiment: Mapping[str, Any], folder: Path) -> None:
        """A run begins, or goes on from a checkpoint."""

    def point(self, step: int, values: Mapping[str, float]) -> None:
        """So many steps are made, and these are the numbers now."""

    def sample(self, step: int, prompt: str, text: str) -> None:
        """The model goes on with a prompt like this now."""

    def end(self, record: Mapping[str, Any]) -> None:
        """The run is over; a run that fails or is stopped never ends."""


def library(logger: Logger, name: str) -> Any:
    """The library that a logger needs. Raises ValueError, which says what to install, where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        command = f"pip install {name}"
        raise ValueError(f"the logger {logger.spec_name} needs {name}; install it with `{command}`") from None


def scores_of(record: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
    """Name, length and value of every score in a record, at the trained length and at those beyond."""
    for row in record["lengths"]:
        for name, value in row.items():
            if name not in ("length", "factor") and value is not None:
                yield name, row["length"], value


def sample_name(prompt: str) -> str:
    """A name for the samples of a prompt, fit for a file: letters of it, and a checksum, for no two share a name.

    >>> sample_name("def "), sample_name("../def"), sample_name("")
    ('def-7ad91533', 'def-cbdc0a06', 'e3b0c442')
    """
    letters = re.sub(r"\W+", "-", prompt)[:LETTERS].strip("-")
    digest = hashlib.sha256(prompt.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{letters}-{digest}".lstrip("-")
