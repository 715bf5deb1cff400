"""What a worker does of a run, wherever it is: train, measure, and make the record."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from posenc.lab.experiments.experiment import Experiment
from posenc.lab.loggers import Together, loggers_of
from posenc.lab.runs import record
from posenc.lab.runs.train import Run, start, train


class Also(Protocol):
    """What else is measured of trained models, and kept under the names of their records."""

    def has(self, key: str) -> bool:
        """Whether that of a run is there, or nothing is measured of it."""
        ...

    def measure(self, run: Run, key: str) -> None:
        """Measure it and keep it. Raises what makes the run fail."""
        ...


Tell: TypeAlias = Callable[..., None]
"""Says which fields of a run's `Progress` have changed."""

Point: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Hears of each point of a learning curve: the steps made, and the numbers then."""


def nobody(step: int, values: Mapping[str, float]) -> None:
    """Hears of points where no logger does."""


def made(experiment: Experiment, key: str, tell: Tell, point: Point = nobody, also: Also | None = None) -> Any:
    """Train and measure: the record of a run, under the key that it was given."""
    began = time.monotonic()

    def progress(run: Run) -> None:
        now = run.curve[-1]
        point(run.step, now)
        tell(step=run.step, share=run.progress, loss=now["loss"], score=now["score"])

    run = train(start(experiment), progress)
    tell(state="measuring")
    found = record.of(run, began)
    if also is not None:
        also.measure(run, key)
    # The parent's key, also when the text that is part of it has changed since.
    return found | {"key": key}


@dataclass(frozen=True)
class Besides:
    """What a run is told to, and what is measured beside its record; workers get a copy of it.

    make  what makes the record; another one stands in for training where the sweep itself is measured
    """

    log: tuple[str, ...] = ()
    also: Also | None = None
    make: Callable[..., dict[str, Any]] = made


NOTHING_BESIDES = Besides()


def check_unchanged(experiment: Experiment) -> None:
    """Raises ValueError where a file of one's own no longer is what it was when the sweep began."""
    if changed := experiment.changed_files():
        raise ValueError(f"{changed[0]}; run the same command again to compare what it is now")


def run_one(experiment: Experiment, key: str, records: Path, tell: Tell, besides: Besides = NOTHING_BESIDES) -> None:
    """Train, measure, and write the record: last of all, for what has a record is over. Loggers hear of it."""
    loggers = Together(loggers_of(besides.log))
    tell(state="running")
    check_unchanged(experiment)
    loggers.begin(experiment.to_dict(), records.with_name("logs") / key)
    found = besides.make(experiment, key, tell, loggers.point, besides.also)
    record.write(found, records)
    loggers.end(found)
