"""The workers of a sweep: processes of this machine, each of which trains one run after another."""

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
from posenc.lab.loggers import LoggerGroup, loggers_of
from posenc.lab.runs import record
from posenc.lab.runs.train import Run, start, train
from posenc.lab.store import CannotWrite

Tell: TypeAlias = Callable[..., None]
"""A function that reports changed fields of a run's `Progress`."""


class RunMeasure(Protocol):
    """A further measure of trained models, stored under the keys of their records."""

    def has(self, key: str) -> bool:
        """Whether a run needs no measurement, or has it."""
        ...

    def measure(self, run: Run, key: str) -> None:
        """Measure a run and store the result. An exception makes the run fail."""
        ...


@dataclass(frozen=True)
class WorkerMessage:
    """A worker's message about one run.

    changes     fields of its `Progress`; when its state is done, its record is in the folder
    error       the text of its exception; or the CannotWrite of its record
    exit_words  how its worker died
    """

    key: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    error: str | CannotWrite = ""
    exit_words: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the worker has finished the run."""
        return bool(self.error or self.exit_words) or self.changes.get("state") == "done"


class Workers:
    """A pool of at most `count` processes, each with one run; `log` and `extra` are as in `run_all`."""

    def __init__(self, count: int, records: Path, log: Sequence[str] = (), extra: RunMeasure | None = None) -> None:
        self.count, self.records, self.log, self.extra = count, records, log, extra
        self.busy: list[Worker] = []
        self.idle: list[Worker] = []

    def has_room(self) -> bool:
        return len(self.busy) < self.count

    def begin(self, key: str, experiment: Experiment) -> None:
        """Start a run, and return immediately."""
        worker = self.idle.pop() if self.idle else Worker(self.records, self.log, self.extra)
        self.busy.append(worker)
        worker.begin(key, experiment)

    def messages(self, seconds: float) -> Iterator[WorkerMessage]:
        """Yield the messages of active runs, after at most so many seconds."""
        ready = connection.wait([worker.wire for worker in self.busy], timeout=seconds)
        for worker in [worker for worker in self.busy if worker.wire in ready]:
            message = worker.receive()
            if message.is_over:
                self.busy.remove(worker)
                if not message.exit_words:
                    self.idle.append(worker)
            yield message

    def close(self) -> None:
        """Kill all workers; their active runs leave no record."""
        crew = [*self.busy, *self.idle]
        for worker in crew:
            worker.process.kill()
        for worker in crew:
            worker.process.join()
            worker.wire.close()


class Worker:
    """A process that trains one run after another, and the parent's end of the pipe to it."""

    def __init__(self, records: Path, log: Sequence[str], extra: RunMeasure | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.wire, worker_end = context.Pipe()
        self.process = context.Process(target=work, args=(worker_end, str(records), log, extra), daemon=True)
        self.key = ""
        with block_signals():
            self.process.start()
        # Only the worker has its end open now: when it dies, the parent reads EOF.
        worker_end.close()

    def begin(self, key: str, experiment: Experiment) -> None:
        self.key = key
        # If it has died, `receive` reports that.
        with suppress(OSError):
            self.wire.send((key, experiment))

    def receive(self) -> WorkerMessage:
        try:
            changes, error = self.wire.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            exit_words = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            return WorkerMessage(self.key, exit_words=f"its process {exit_words} (out of memory?)")
        return WorkerMessage(self.key, changes, error)


def work(wire: Connection, records: str, log: Sequence[str], extra: RunMeasure | None) -> None:
    """In a worker: train the runs that arrive on the pipe, and report each result."""
    set_up_worker()
    while True:
        try:
            key, experiment = wire.recv()
        except EOFError:
            return

        def tell(**changes: Any) -> None:
            wire.send((changes, ""))

        try:
            make_record(experiment, key, Path(records), tell, log, extra)
        except Exception as error:
            # As text: not every exception of the user's own encoding can be pickled.
            wire.send(({}, error if isinstance(error, CannotWrite) else f"{type(error).__name__}: {error}"))
        else:
            tell(state="done")


def make_record(
    experiment: Experiment,
    key: str,
    records: Path,
    tell: Tell,
    log: Sequence[str] = (),
    extra: RunMeasure | None = None,
) -> None:
    """Train and measure a run, and write its record. The record is last, because it means that the run is complete.

    Raises ValueError where one of the user's files has changed since the sweep began.
    """
    loggers = LoggerGroup(loggers_of(log))
    tell(state="running")
    if file_changes := experiment.changed_files():
        raise ValueError(f"{file_changes[0]}; run the same command again to compare what it is now")
    loggers.tell("begin", experiment.to_dict(), records.with_name("logs") / key)
    began = time.monotonic()

    def progress(run: Run) -> None:
        now = run.curve[-1]
        loggers.tell("point", run.step, now)
        tell(step=run.step, share=run.progress, loss=now["loss"], score=now["score"])

    run = train(start(experiment), progress)
    tell(state="measuring")
    # The parent's key, even if the text that it depends on has changed since.
    finished_record = record.run_record(run, began) | {"key": key}
    if extra is not None:
        extra.measure(run, key)
    record.write(finished_record, records)
    loggers.tell("end", finished_record)


def set_up_worker() -> None:
    """Prepare a worker process with one thread for each run. Two runs on two cores are faster than one on both.

    The parent handles SIGINT and SIGHUP; SIGTERM reaches the worker from here on. The worker exits when its parent is
    killed.
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
def block_signals() -> Generator[None]:
    """Block SIGINT, SIGHUP and SIGTERM for the block and for the processes that it starts.

    Otherwise a process that is only half started could be left behind.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
