"""The cores of this machine: a process for each run at work, one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from posenc.lab.experiments.experiment import Experiment
from posenc.lab.store import CannotWrite
from posenc.lab.sweeps.engines._engine import News
from posenc.lab.sweeps.engines.worker import NOTHING_BESIDES, Besides, run_one


class Local:
    """Carry out `count` runs at once in processes of this machine, each of which does one run after another."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.busy: list[Worker] = []
        self.idle: list[Worker] = []

    def open(self, experiments: Sequence[Experiment], records: Path, besides: Besides = NOTHING_BESIDES) -> None:
        self.records, self.besides = records, besides

    def has_room(self, experiment: Experiment) -> bool:
        return len(self.busy) < self.count

    def begin(self, key: str, experiment: Experiment) -> None:
        worker = self.idle.pop() if self.idle else Worker(self.records, self.besides)
        self.busy.append(worker)
        worker.begin(key, experiment)

    def news(self, seconds: float) -> Iterator[News]:
        ready = connection.wait([worker.wire for worker in self.busy], timeout=seconds)
        for worker in [worker for worker in self.busy if worker.wire in ready]:
            found = worker.heard()
            if found.over:
                self.busy.remove(worker)
                if not found.died:
                    self.idle.append(worker)
            yield found

    def close(self) -> None:
        crew = [*self.busy, *self.idle]
        for worker in crew:
            worker.process.kill()
        for worker in crew:
            worker.process.join()
            worker.wire.close()


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

    def heard(self) -> News:
        try:
            changes, failed = self.wire.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            return News(self.key, died=f"its process {died} (out of memory?)")
        return News(self.key, changes, failed)


def work(wire: Connection, records: str, besides: Besides) -> None:
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
            run_one(experiment, key, Path(records), tell, besides)
        except Exception as error:
            # As words: not every exception of somebody else's encoding can be sent.
            wire.send(({}, error if isinstance(error, CannotWrite) else f"{type(error).__name__}: {error}"))
        else:
            tell(state="done")


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
