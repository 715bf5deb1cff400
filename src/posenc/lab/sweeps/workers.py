"""The workers of a sweep: processes of this machine, each of which makes the record of one run after another."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from posenc.lab.experiments.experiment import Experiment
from posenc.lab.loggers import Together, loggers_of
from posenc.lab.runs import record
from posenc.lab.runs.train import Run, start, train
from posenc.lab.store import CannotWrite

Tell: TypeAlias = Callable[..., None]
"""Says which fields of a run's `Progress` have changed."""


class Also(Protocol):
    """What else is measured of trained models, and kept under the names of their records."""

    def has(self, key: str) -> bool:
        """Whether that of a run is there, or nothing is measured of it."""
        ...

    def measure(self, run: Run, key: str) -> None:
        """Measure it and keep it. Raises what makes the run fail."""
        ...


@dataclass(frozen=True)
class News:
    """What is heard of one run.

    changes  of its `Progress`; where its state is done, its record is in the folder, whole
    failed   what it raised, in words; or that its record could not be written
    died     how its worker ended without a word, in words
    """

    key: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    failed: str | CannotWrite = ""
    died: str = ""

    @property
    def over(self) -> bool:
        """Whether its worker is done with it."""
        return bool(self.failed or self.died) or self.changes.get("state") == "done"


class Workers:
    """At most `count` runs at once, each in a process that writes its record; `log` and `also` are as in `run_all`."""

    def __init__(self, count: int, records: Path, log: Sequence[str] = (), also: Also | None = None) -> None:
        self.count, self.records, self.log, self.also = count, records, log, also
        self.busy: list[Worker] = []
        self.idle: list[Worker] = []

    def has_room(self) -> bool:
        return len(self.busy) < self.count

    def begin(self, key: str, experiment: Experiment) -> None:
        """Begin a run, and return at once."""
        worker = self.idle.pop() if self.idle else Worker(self.records, self.log, self.also)
        self.busy.append(worker)
        worker.begin(key, experiment)

    def news(self, seconds: float) -> Iterator[News]:
        """What is heard of the runs in hand, as soon as there is something, and after so many seconds in any case."""
        ready = connection.wait([worker.wire for worker in self.busy], timeout=seconds)
        for worker in [worker for worker in self.busy if worker.wire in ready]:
            found = worker.heard()
            if found.over:
                self.busy.remove(worker)
                if not found.died:
                    self.idle.append(worker)
            yield found

    def close(self) -> None:
        """End at once what is in hand; it leaves no record, and no process stays behind."""
        crew = [*self.busy, *self.idle]
        for worker in crew:
            worker.process.kill()
        for worker in crew:
            worker.process.join()
            worker.wire.close()


class Worker:
    """A process that does one run after another, and our end of the wire to it."""

    def __init__(self, records: Path, log: Sequence[str], also: Also | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.wire, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, str(records), log, also), daemon=True)
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

    def heard(self) -> News:
        try:
            changes, failed = self.wire.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            return News(self.key, died=f"its process {died} (out of memory?)")
        return News(self.key, changes, failed)


def work(wire: Connection, records: str, log: Sequence[str], also: Also | None) -> None:
    """In a worker: the runs that come over the wire, one after another, and what became of each."""
    begin()
    while True:
        try:
            key, experiment = wire.recv()
        except EOFError:
            return

        def tell(**changes: Any) -> None:
            wire.send((changes, ""))

        try:
            run_one(experiment, key, Path(records), tell, log, also)
        except Exception as error:
            # As words: not every exception of somebody else's encoding can be sent.
            wire.send(({}, error if isinstance(error, CannotWrite) else f"{type(error).__name__}: {error}"))
        else:
            tell(state="done")


def run_one(
    experiment: Experiment, key: str, records: Path, tell: Tell, log: Sequence[str] = (), also: Also | None = None
) -> None:
    """Train, measure, and write the record: last of all, for what has a record is over. Loggers hear of it.

    Raises ValueError where a file of one's own no longer is what it was when the sweep began.
    """
    loggers = Together(loggers_of(log))
    tell(state="running")
    if changed := experiment.changed_files():
        raise ValueError(f"{changed[0]}; run the same command again to compare what it is now")
    loggers.tell("begin", experiment.to_dict(), records.with_name("logs") / key)
    began = time.monotonic()

    def progress(run: Run) -> None:
        now = run.curve[-1]
        loggers.tell("point", run.step, now)
        tell(step=run.step, share=run.progress, loss=now["loss"], score=now["score"])

    run = train(start(experiment), progress)
    tell(state="measuring")
    # The parent's key, also when the text that is part of it has changed since.
    found = record.of(run, began) | {"key": key}
    if also is not None:
        also.measure(run, key)
    record.write(found, records)
    loggers.tell("end", found)


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
