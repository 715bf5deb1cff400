"""Sweeps: many runs, as many at a time as there are cores; resumable."""

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenc import checks
from posenc.foreign import CannotRead
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import UNBOUNDED, cost
from posenc.lab.results.summary import legible
from posenc.lab.runs import record
from posenc.lab.store import CannotWrite
from posenc.lab.sweeps.workers import Also, News, Workers

TICK = 0.2
"""Seconds between two looks at a sweep in which nothing happens."""


@dataclass
class Progress:
    """What is known of one run while it goes on."""

    key: str
    spec: str
    task: str
    seed: int
    steps: int
    step: int = 0
    loss: float | None = None
    score: float | None = None
    state: str = "waiting"
    """waiting, running, measuring, done, kept (from an earlier call), or failed"""
    share: float = 0.0
    """How much of its training is done."""
    cost: float = 1.0
    """What the whole run takes, beside others."""

    @property
    def words(self) -> str:
        return f"{self.spec} on {self.task}, seed {self.seed}"

    def failure(self, reason: str) -> record.Failure:
        """The run among those that failed."""
        return record.Failure(f"{self.words}: {reason}", self.spec, self.task)

    @property
    def how_far(self) -> str:
        """Its steps, and of a run that ends by something else the share that is done."""
        return f"{self.step}/{self.steps}" if self.steps < UNBOUNDED else f"{self.step} ({self.share:.0%})"


@dataclass
class Sweep:
    """The state of a sweep, for whoever draws it."""

    runs: dict[str, Progress] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """How many runs have their record."""
        return sum(run.state in ("done", "kept") for run in self.runs.values())

    def seconds_left(self) -> float | None:
        """An estimate from the steps done so far; None while there is nothing to go by."""
        fresh = [run for run in self.runs.values() if run.state != "kept"]
        total = sum(run.cost for run in fresh)
        over = ("done", "failed", "measuring")
        made = sum(run.cost * (1 if run.state in over else min(run.share, 1.0)) for run in fresh)
        elapsed = time.monotonic() - self.began
        return None if made == 0 else elapsed * (total - made) / made


def run_all(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    workers: int | None = None,
    log: Sequence[str] = (),
    show: Callable[[Sweep], None] = lambda sweep: None,
    more: Callable[[], bool] = lambda: True,
    also: Also | None = None,
) -> Sweep:
    """Run what has no record yet in folder/records, and write each record as soon as its run is over.

    workers  how many processes; default: one for each core
    log      loggers, as specs; each is told of every run, in a folder of its own: folder/logs/KEY
    also     what else is measured of the trained models; a run of which that is missing is made again

    A call with the same experiments goes on where an earlier one stopped. A record that cannot be used is set aside
    and made again. A run that fails is named in `failures`; the others go on. So is one whose worker died twice; after
    the first time it is tried again when all others have begun. `show` is called about five times a second, and so is
    `more`: when it says no, what has begun goes on to its end, and nothing else begins. On KeyboardInterrupt the
    workers end and the exception goes on; what has a record keeps it.

    The folder must be held (`store.held`). Raises CannotWrite when a record could not be written, after the runs that
    had begun.
    """
    if workers is not None:
        checks.whole("workers", workers, 1)
    records = folder / "records"
    sweep, waiting, others = Sweep(), {}, []
    for experiment in experiments:
        key = record.key_of(experiment)
        spec = " / ".join(experiment.specs) + (f" with {experiment.map}" if experiment.map else "")
        about = legible(experiment.task), experiment.seed, experiment.steps
        sweep.runs[key] = Progress(key, legible(spec), *about, cost=cost(experiment))
        if (kept := kept_record(records / f"{key}.json")) and (also is None or also.has(key)):
            sweep.runs[key].state = "kept"
            others.append(store.other_versions(kept["versions"]))
        else:
            waiting[key] = experiment
    for other, count in Counter(filter(None, others)).items():
        say(f"{count} of {len(sweep.runs)} runs are kept from {other}; to make them again, delete their records")
    show(sweep)
    if waiting:
        with store.told(records):
            records.mkdir(parents=True, exist_ok=True)
        crew = Crew(Workers(min(workers or cores(), len(waiting)), records, log, also), records, sweep)
        crew.work_off(waiting, show, more)
    return sweep


class Crew:
    """What waits for workers and what they have in hand, and what becomes of each run.

    Here alone it is decided which run is tried again, which is set aside and which failed.
    """

    def __init__(self, workers: Workers, records: Path, sweep: Sweep) -> None:
        self.workers, self.records, self.sweep = workers, records, sweep
        self.begun: set[str] = set()
        self.tried_again: set[str] = set()
        self.unwritten: CannotWrite | None = None

    def work_off(self, waiting: dict[str, Experiment], show: Callable[[Sweep], None], more: Callable[[], bool]) -> None:
        """Work off what waits, while there is to be more. Raises CannotWrite when a record could not be written."""
        line, next_show = deque(waiting), 0.0
        try:
            while line or self.begun:
                if self.unwritten or not more():
                    line.clear()
                while line and self.workers.has_room():
                    key = line.popleft()
                    self.begun.add(key)
                    self.workers.begin(key, waiting[key])
                for news in self.workers.news(TICK):
                    self.take(news, line)
                if (now := time.monotonic()) >= next_show:
                    show(self.sweep)
                    # What is shown of many runs takes long, and must not take the time of the runs.
                    next_show = time.monotonic() + max(TICK, 20 * (time.monotonic() - now))
        finally:
            # What is in hand has no record, and leaves nothing behind.
            self.workers.close()
            store.clear(self.records)
        show(self.sweep)
        if self.unwritten:
            raise self.unwritten

    def take(self, news: News, line: deque[str]) -> None:
        """Take in what is heard of a run."""
        run = self.sweep.runs[news.key]
        if news.over:
            self.begun.remove(run.key)
        for name, value in news.changes.items():
            setattr(run, name, value)
        if news.died:
            self.again_or_aside(run, news.died, line)
        elif news.failed:
            self.fail(run, str(news.failed))
            self.unwritten = news.failed if isinstance(news.failed, CannotWrite) else self.unwritten
        elif run.state == "done":
            self.keep(run)

    def keep(self, run: Progress) -> None:
        """A run is done when its record can be read: then no earlier failure is left."""
        if kept_record(self.records / f"{run.key}.json"):
            record.forget_failure(self.records, run.key)
        else:
            self.fail(run, "its record was damaged when it was read again")

    def again_or_aside(self, run: Progress, died: str, line: deque[str]) -> None:
        """A run whose worker died goes to the end of the line, and after the second time it is set aside."""
        if run.key in self.tried_again:
            self.fail(run, f"{died}, twice")
            return
        self.tried_again.add(run.key)
        run.state, run.step, run.share = "waiting", 0, 0.0
        line.append(run.key)
        say(f"{run.words}: {died}; it is tried once more")

    def fail(self, run: Progress, reason: str) -> None:
        run.state = "failed"
        self.sweep.failures[run.key] = reason
        try:
            record.write_failure(self.records, run.key, run.failure(reason))
        except CannotWrite as error:
            self.unwritten = error


def kept_record(path: Path) -> dict[str, Any] | None:
    """The whole record that is there, or None; one that cannot be used is set aside, and nothing is lost of it."""
    if not path.exists():
        return None
    try:
        return record.read(path)
    except CannotRead as error:
        why = "other-schema" if isinstance(error, record.OtherSchema) else "damaged"
        say(f"{error}; set aside as {store.set_aside(path, why).name}, the run is made again")
        return None


def say(words: str) -> None:
    print(words, file=sys.stderr)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
