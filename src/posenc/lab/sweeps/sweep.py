"""Sweeps: many runs, one process for each core; resumable."""

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
from posenc.lab.experiments.recipes import UNBOUNDED_STEPS, cost
from posenc.lab.results.summary import for_display
from posenc.lab.runs import record
from posenc.lab.store import CannotWrite
from posenc.lab.sweeps.workers import RunMeasure, WorkerMessage, Workers

TICK = 0.2
"""The polling interval of a sweep (seconds)."""


@dataclass
class Progress:
    """The progress of one run."""

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
    """The fraction of its training that is done."""
    cost: float = 1.0
    """The cost of the whole run relative to others."""

    @property
    def words(self) -> str:
        return f"{self.spec} on {self.task}, seed {self.seed}"

    def failure(self, reason: str) -> record.Failure:
        """The Failure of this run."""
        return record.Failure(f"{self.words}: {reason}", self.spec, self.task)

    @property
    def how_far(self) -> str:
        """The steps done, or the percentage for a run that ends by tokens or seconds."""
        return f"{self.step}/{self.steps}" if self.steps < UNBOUNDED_STEPS else f"{self.step} ({self.share:.0%})"


@dataclass
class Sweep:
    """The state of a sweep, for progress displays."""

    runs: dict[str, Progress] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def done_count(self) -> int:
        """The number of runs with a record."""
        return sum(run.state in ("done", "kept") for run in self.runs.values())

    def seconds_left(self) -> float | None:
        """An estimate from the training done so far; None before any."""
        fresh = [run for run in self.runs.values() if run.state != "kept"]
        total = sum(run.cost for run in fresh)
        final_states = ("done", "failed", "measuring")
        cost_done = sum(run.cost * (1 if run.state in final_states else min(run.share, 1.0)) for run in fresh)
        seconds = time.monotonic() - self.began
        return None if cost_done == 0 else seconds * (total - cost_done) / cost_done


def run_all(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    workers: int | None = None,
    log: Sequence[str] = (),
    show: Callable[[Sweep], None] = lambda sweep: None,
    go_on: Callable[[], bool] = lambda: True,
    extra: RunMeasure | None = None,
) -> Sweep:
    """Train the runs without a record in folder/records, and write each record when its run is complete.

    workers  the number of processes; default: one for each core
    log      specs of loggers; each run logs to its own folder, folder/logs/KEY
    extra    a further measure of the trained models; a run without it is repeated

    A call with the same experiments resumes an earlier one. A damaged record is set aside and its run repeated. A run
    that fails is named in `failures`, and the others continue. A run whose worker died is retried once, after all
    others have begun; the second time it fails. `show` and `go_on` are called about five times a second; when
    the latter returns False, active runs finish and no other begins. KeyboardInterrupt kills the workers; records stay.

    The folder must be locked (`store.locked_folder`). Raises CannotWrite, after the active runs, when a record could
    not be written.
    """
    if workers is not None:
        checks.whole("workers", workers, 1)
    records = folder / "records"
    sweep, waiting, version_differences = Sweep(), {}, []
    for experiment in experiments:
        key = record.key_of(experiment)
        spec = " / ".join(experiment.specs) + (f" with {experiment.map}" if experiment.map else "")
        details = for_display(experiment.task), experiment.seed, experiment.steps
        sweep.runs[key] = Progress(key, for_display(spec), *details, cost=cost(experiment))
        if (old_record := kept_record(records / f"{key}.json")) and (extra is None or extra.has(key)):
            sweep.runs[key].state = "kept"
            version_differences.append(store.version_difference(old_record["versions"]))
        else:
            waiting[key] = experiment
    for difference, count in Counter(filter(None, version_differences)).items():
        print_error(
            f"{count} of {len(sweep.runs)} runs are kept from {difference}; to make them again, delete their records"
        )
    show(sweep)
    if waiting:
        with store.write_errors(records):
            records.mkdir(parents=True, exist_ok=True)
        crew = Scheduler(Workers(min(workers or cores(), len(waiting)), records, log, extra), records, sweep)
        crew.run_all(waiting, show, go_on)
    return sweep


class Scheduler:
    """Assign waiting runs to workers, and decide which run is done, retried or failed."""

    def __init__(self, workers: Workers, records: Path, sweep: Sweep) -> None:
        self.workers, self.records, self.sweep = workers, records, sweep
        self.active_keys: set[str] = set()
        self.tried_again: set[str] = set()
        self.unwritten: CannotWrite | None = None

    def run_all(self, waiting: dict[str, Experiment], show: Callable[[Sweep], None], go_on: Callable[[], bool]) -> None:
        """Run all that wait, until go_on() is False. Raises CannotWrite when a record could not be written."""
        line, next_show = deque(waiting), 0.0
        try:
            while line or self.active_keys:
                if self.unwritten or not go_on():
                    line.clear()
                while line and self.workers.has_room():
                    key = line.popleft()
                    self.active_keys.add(key)
                    self.workers.begin(key, waiting[key])
                for news in self.workers.messages(TICK):
                    self.handle(news, line)
                if (now := time.monotonic()) >= next_show:
                    show(self.sweep)
                    # Showing many runs is slow, and must take at most a twentieth of the time.
                    next_show = time.monotonic() + max(TICK, 20 * (time.monotonic() - now))
        finally:
            # An active run has no record, and its temporary files are removed.
            self.workers.close()
            store.clear(self.records)
        show(self.sweep)
        if self.unwritten:
            raise self.unwritten

    def handle(self, news: WorkerMessage, line: deque[str]) -> None:
        """Handle a worker's message."""
        run = self.sweep.runs[news.key]
        if news.is_over:
            self.active_keys.remove(run.key)
        for name, value in news.changes.items():
            setattr(run, name, value)
        if news.exit_words:
            self.retry_or_fail(run, news.exit_words, line)
        elif news.error:
            self.fail(run, str(news.error))
            self.unwritten = news.error if isinstance(news.error, CannotWrite) else self.unwritten
        elif run.state == "done":
            self.keep(run)

    def keep(self, run: Progress) -> None:
        """Remove the failure of a finished run if its record can be read; else fail it."""
        if kept_record(self.records / f"{run.key}.json"):
            record.forget_failure(self.records, run.key)
        else:
            self.fail(run, "its record was damaged when it was read again")

    def retry_or_fail(self, run: Progress, exit_words: str, line: deque[str]) -> None:
        """Put a run whose worker died at the end of the line; the second time, fail it."""
        if run.key in self.tried_again:
            self.fail(run, f"{exit_words}, twice")
            return
        self.tried_again.add(run.key)
        run.state, run.step, run.share = "waiting", 0, 0.0
        line.append(run.key)
        print_error(f"{run.words}: {exit_words}; it is tried once more")

    def fail(self, run: Progress, reason: str) -> None:
        run.state = "failed"
        self.sweep.failures[run.key] = reason
        try:
            record.write_failure(self.records, run.key, run.failure(reason))
        except CannotWrite as error:
            self.unwritten = error


def kept_record(path: Path) -> dict[str, Any] | None:
    """The record at a path, or None; a damaged one is renamed, not deleted."""
    if not path.exists():
        return None
    try:
        return record.read(path)
    except CannotRead as error:
        why = "other-schema" if isinstance(error, record.OtherSchema) else "damaged"
        print_error(f"{error}; set aside as {store.set_aside(path, why).name}, the run is made again")
        return None


def print_error(words: str) -> None:
    print(words, file=sys.stderr)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
