"""Sweeps: many runs at once, one thread each, as many at a time as there are cores; resumable."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from posenc.foreign import CannotRead
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import UNBOUNDED, cost
from posenc.lab.loggers import Together, loggers_of
from posenc.lab.results.summary import legible
from posenc.lab.runs import record
from posenc.lab.runs.train import Run, start, train
from posenc.lab.store import CannotWrite


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
        return sum(run.state in ("done", "kept", "failed") for run in self.runs.values())

    def seconds_left(self) -> float | None:
        """An estimate from the steps done so far; None while there is nothing to go by."""
        fresh = [run for run in self.runs.values() if run.state != "kept"]
        total = sum(run.cost for run in fresh)
        over = ("done", "failed", "measuring")
        made = sum(run.cost * (1 if run.state in over else min(run.share, 1.0)) for run in fresh)
        elapsed = time.monotonic() - self.began
        return None if made == 0 else elapsed * (total - made) / made


class Also(Protocol):
    """What else is measured of trained models, and kept under the names of their records."""

    def has(self, key: str) -> bool:
        """Whether that of a run is there, or nothing is measured of it."""
        ...

    def measure(self, run: Run, key: str) -> None:
        """Measure it and keep it. Raises what makes the run fail."""
        ...


@dataclass(frozen=True)
class Besides:
    """What a run is told to, and what is measured beside its record; workers get a copy of it."""

    log: tuple[str, ...] = ()
    also: Also | None = None


NOTHING_BESIDES = Besides()


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

    log   loggers, as specs; each is told of every run, in a folder of its own: folder/logs/KEY
    also  what else is measured of the trained models; a run of which that is missing is made again

    A call with the same experiments goes on where an earlier one stopped. A record that cannot be used is set aside
    and made again. A run that fails is named in `failures`; the others go on. So is one whose process was killed
    twice; after the first time it is tried again when all others have begun. `show` is called about five times a
    second, and so is `more`: when it says no, what has begun goes on to its end, and nothing else begins. On
    KeyboardInterrupt the workers end and the exception goes on; what has a record keeps it.

    The folder must be held (`store.held`). Raises CannotWrite when a record could not be written, after the runs that
    had begun.
    """
    records = folder / "records"
    sweep, waiting, others = Sweep(), {}, []
    for experiment in experiments:
        key = record.key_of(experiment)
        spec = " / ".join(experiment.specs) + (f" with {experiment.map}" if experiment.map else "")
        about = legible(experiment.task), experiment.seed, experiment.steps
        sweep.runs[key] = Progress(key, legible(spec), *about, cost=cost(experiment))
        found = kept_record(records / f"{key}.json")
        if found and (also is None or also.has(key)):
            sweep.runs[key].state = "kept"
            others.append(record.made_elsewhere(found))
        else:
            waiting[key] = experiment
    for other in dict.fromkeys(filter(None, others)):
        say(
            f"{others.count(other)} of {len(sweep.runs)} runs are kept from {other}; to make them again, delete their "
            f"records"
        )
    show(sweep)
    if waiting:
        with store.told(records):
            records.mkdir(parents=True, exist_ok=True)
        besides = Besides(tuple(log), also)
        Crew(min(workers or cores(), len(waiting)), records, sweep, besides).work_off(waiting, show, more)
    return sweep


class Worker:
    """A process that does one run after another, and our end of the wire to it."""

    def __init__(self, records: Path, besides: Besides) -> None:
        context = multiprocessing.get_context("spawn")
        self.wire, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, str(records), besides), daemon=True)
        self.key = ""
        with signals_held():
            self.process.start()
        # Only the worker holds its end now: when it dies, the wire says so.
        theirs.close()

    def begin(self, key: str, experiment: Experiment) -> None:
        self.key = key
        # Where it died before it could take the run, its wire tells.
        with suppress(OSError):
            self.wire.send((key, experiment))

    def how_it_died(self) -> str:
        self.process.join()
        code = self.process.exitcode or 0
        return (
            f"its process was killed by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
        )


class Crew:
    """The workers of a sweep, what waits for them, and what became of it."""

    def __init__(self, count: int, records: Path, sweep: Sweep, besides: Besides = NOTHING_BESIDES) -> None:
        self.count, self.records, self.sweep, self.besides = count, records, sweep, besides
        self.busy: list[Worker] = []
        self.idle: list[Worker] = []
        self.died: set[str] = set()
        self.unwritten: CannotWrite | None = None

    def work_off(self, waiting: dict[str, Experiment], show: Callable[[Sweep], None], more: Callable[[], bool]) -> None:
        """Work off what waits, while there is to be more. Raises CannotWrite when a record could not be written."""
        line = list(waiting)
        try:
            while line or self.busy:
                if not more():
                    line.clear()
                while line and len(self.busy) < self.count:
                    worker = self.idle.pop() if self.idle else Worker(self.records, self.besides)
                    self.busy.append(worker)
                    worker.begin(line[0], waiting[line.pop(0)])
                ready = connection.wait([worker.wire for worker in self.busy], timeout=0.2)
                for worker in [worker for worker in self.busy if worker.wire in ready]:
                    self.take_news(worker, line)
                if self.unwritten:
                    line.clear()
                show(self.sweep)
        finally:
            self.end()
        if self.unwritten:
            raise self.unwritten

    def take_news(self, worker: Worker, line: list[str]) -> None:
        """Take in what a worker says of its run, or that it is gone."""
        run = self.sweep.runs[worker.key]
        try:
            changes, failure = worker.wire.recv()
        except (EOFError, OSError):
            self.busy.remove(worker)
            how = f"{worker.how_it_died()} (out of memory?)"
            if run.key in self.died:
                self.fail(run, f"{how}, twice")
            else:
                self.died.add(run.key)
                run.state, run.step, run.share = "waiting", 0, 0.0
                line.append(run.key)
                say(f"{run.words}: {how}; it is tried once more")
            return
        for name, value in changes.items():
            setattr(run, name, value)
        if failure is not None:
            self.fail(run, str(failure))
            self.unwritten = failure if isinstance(failure, CannotWrite) else self.unwritten
        if run.state == "done":
            record.forget_failure(self.records, run.key)
        if run.state in ("done", "failed"):
            self.busy.remove(worker)
            self.idle.append(worker)

    def fail(self, run: Progress, reason: str) -> None:
        run.state = "failed"
        self.sweep.failures[run.key] = reason
        try:
            record.write_failure(self.records, run.key, f"{run.words}: {reason}")
        except CannotWrite as error:
            self.unwritten = error

    def end(self) -> None:
        """End the workers at once; what they had not finished has no record, and leaves nothing behind."""
        crew = [*self.busy, *self.idle]
        for worker in crew:
            worker.process.kill()
        for worker in crew:
            worker.process.join()
            worker.wire.close()
        store.clear(self.records)


def work(wire: Connection, records: str, besides: Besides) -> None:
    """In a worker: the runs that come over the wire, one after another, and what became of each."""
    begin()
    while True:
        try:
            key, experiment = wire.recv()
        except EOFError:
            return

        def tell(**changes: Any) -> None:
            wire.send((changes, None))

        try:
            run_one(experiment, key, Path(records), tell, besides)
        except Exception as error:
            # As words: not every exception of somebody else's encoding can be sent.
            wire.send(({}, error if isinstance(error, CannotWrite) else f"{type(error).__name__}: {error}"))
        else:
            tell(state="done")


def run_one(
    experiment: Experiment, key: str, records: Path, tell: Callable[..., None], besides: Besides = NOTHING_BESIDES
) -> None:
    """Train, measure, and write the record: last of all, for what has a record is over. Loggers hear of it."""
    began, loggers = time.monotonic(), Together(loggers_of(besides.log))

    def progress(run: Run) -> None:
        point = run.curve[-1]
        loggers.point(run.step, point)
        tell(step=run.step, share=run.progress, loss=point["loss"], score=point["score"])

    tell(state="running")
    if changed := experiment.changed_files():
        raise ValueError(f"{changed[0]}; run the same command again to compare what it is now")
    loggers.begin(experiment.to_dict(), records.with_name("logs") / key)
    run = train(start(experiment), progress)
    tell(state="measuring")
    made = record.of(run, began)
    if besides.also is not None:
        besides.also.measure(run, key)
    # The parent's key, also when the text that is part of it has changed since.
    record.write(made | {"key": key}, records)
    loggers.end(made | {"key": key})


def begin() -> None:
    """In a worker, before all else: one thread for each run, because two runs on two cores are faster than one on both.

    Ctrl-C and a terminal that closes are the parent's to handle; a request to end is the worker's own too, from here
    on. When the parent is killed the worker does not stay behind.
    """
    import torch

    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    torch.set_num_threads(1)


@contextmanager
def signals_held() -> Generator[None]:
    """Ctrl-C, a terminal that closes and a request to end come when the block is over; its processes see none of them.

    One of which only half is started would be left behind.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
