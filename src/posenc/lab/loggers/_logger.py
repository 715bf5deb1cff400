"""The base class of loggers."""

import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.specs.registry import SpecObject

PROMPT_LETTERS = 40
"""The most letters of a prompt in the name of its samples: file systems and Weights & Biases refuse long names."""


@dataclass(kw_only=True, eq=False)
class Logger(SpecObject):
    """Write the progress of a run to a file or to another tool. A run calls the methods in this order.

        begin(experiment, folder)   once, before the first step: the settings, and the folder of this run alone
        point(step, values)         at every point of the learning curve: names to numbers, such as loss (nats)
        sample(step, prompt, text)  with --samples: the model's continuation of a prompt at that point
        end(record)                 once, when the run has been measured: its whole record

    Your own logger is a subclass in your own file, `--log path/to/mine.py:Mine`; it may omit methods. Options are the
    fields of a dataclass: `--log "path/to/mine.py:Mine(every=10)"`. Import its library when it is built, so that a
    missing one is an error before training. A later exception ends the log, not the run.

    >>> from posenc.lab.loggers import loggers_of
    >>> loggers_of(["jsonl"])
    [jsonl()]
    """

    def begin(self, experiment: Mapping[str, Any], folder: Path) -> None:
        """Called when a run begins, or resumes a checkpoint."""

    def point(self, step: int, values: Mapping[str, float]) -> None:
        """Called at each point of the curve, with its numbers."""

    def sample(self, step: int, prompt: str, text: str) -> None:
        """Called with the model's continuation of a prompt."""

    def end(self, record: Mapping[str, Any]) -> None:
        """Called when the run is complete; not when it fails or is stopped."""


def require_library(logger: Logger, name: str) -> Any:
    """Import the library of a logger. Raises ValueError, with what to install, where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        command = f"pip install {name}"
        raise ValueError(f"the logger {logger.spec_name} needs {name}; install it with `{command}`") from None


def scores_of(record: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
    """Yield name, length and value of every score in a record."""
    for row in record["lengths"]:
        for name, value in row.items():
            if name not in ("length", "factor") and value is not None:
                yield name, row["length"], value


def sample_name(prompt: str) -> str:
    """Return a file name for a prompt's samples: some letters, and a checksum that makes it unique.

    >>> sample_name("def "), sample_name("../def"), sample_name("")
    ('def-7ad91533', 'def-cbdc0a06', 'e3b0c442')
    """
    letters = re.sub(r"\W+", "-", prompt)[:PROMPT_LETTERS].strip("-")
    digest = hashlib.sha256(prompt.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{letters}-{digest}".lstrip("-")
