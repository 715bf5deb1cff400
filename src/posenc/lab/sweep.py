"""Sweeps: many runs at once, one thread each, as many at a time as there are cores; resumable."""

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenc.lab.recipes import STEP_COST, Experiment

to_parent: Any = None
"""In a worker, where its news goes; a queue can only be handed over when a process starts."""


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
        cost = {run.key: STEP_COST.get(run.task, 1.0) for run in fresh}
        total = sum(run.steps * cost[run.key] for run in fresh)
        over = ("done", "failed", "measuring")
        made = sum((run.steps if run.state in over else run.step) * cost[run.key] for run in fresh)
        elapsed = time.monotonic() - self.began
        return None if made == 0 else elapsed * (total - made) / made


def run_all(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    workers: int | None = None,
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> Sweep:
    """Run what has no record yet in folder/records, and write each record as soon as its run is over.

    A call with the same experiments goes on where an earlier one stopped. A damaged record is set aside as
    NAME.damaged and made again. A run that fails is named in `failures`; the others go on. `show` is called about five
    times a second. On KeyboardInterrupt the workers end and the exception goes on; what has a record keeps it.

    Raises ValueError when the folder cannot be written.
    """
    from posenc.lab import record

    records = folder / "records"
    make_folder(records)
    sweep, waiting = Sweep(), {}
    for experiment in experiments:
        key = record.key_of(experiment)
        spec = experiment.spec if isinstance(experiment.spec, str) else " / ".join(experiment.spec)
        sweep.runs[key] = Progress(key, spec, experiment.task, experiment.seed, experiment.steps)
        if has_record(records / f"{key}.json"):
            sweep.runs[key].state = "kept"
        else:
            waiting[key] = experiment
    show(sweep)
    if not waiting:
        return sweep
    context = multiprocessing.get_context("spawn")
    workers = min(workers or cores(), len(waiting))
    news = context.Queue()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=begin, initargs=(news,))
    try:
        with ctrl_c_held():
            futures = {pool.submit(run_one, run, key, str(records)): key for key, run in waiting.items()}
        follow(futures, news, sweep, show)
    except BaseException:
        stop(pool)
        raise
    pool.shutdown()
    return sweep


def follow(futures: dict[Future, str], news: Any, sweep: Sweep, show: Callable[[Sweep], None]) -> None:
    """Take in the workers' news until all runs are over."""
    open_futures = set(futures)
    while open_futures:
        finished, open_futures = wait(open_futures, timeout=0.2, return_when=FIRST_COMPLETED)
        while True:
            try:
                key, changes = news.get_nowait()
            except queue.Empty:
                break
            if sweep.runs[key].state not in ("done", "failed"):
                for name, value in changes.items():
                    setattr(sweep.runs[key], name, value)
        for future in finished:
            error = future.exception()
            sweep.runs[futures[future]].state = "done" if error is None else "failed"
            if isinstance(error, BrokenProcessPool):
                raise RuntimeError(
                    "a worker process was killed (out of memory?); run the same command again to go on"
                ) from None
            if error is not None:
                sweep.failures[futures[future]] = f"{type(error).__name__}: {error}"
        show(sweep)


def run_one(experiment: Experiment, key: str, records: str) -> None:
    """In a worker: train, measure, and write the record."""
    from posenc.lab import record
    from posenc.lab.train import Run, start, train

    began = time.monotonic()

    def tell(**changes: Any) -> None:
        to_parent.put((key, changes))

    def progress(run: Run) -> None:
        point = run.curve[-1]
        tell(step=run.step, loss=point["loss"], score=point["score"])

    tell(state="running")
    run = train(start(experiment), progress)
    tell(state="measuring")
    # The parent's key, also when a file that is part of it has changed since.
    record.write(record.of(run, began) | {"key": key}, Path(records))


def begin(news: Any) -> None:
    """In a worker, before all else: one thread for each run, because two runs on two cores are faster than one on both.

    Ctrl-C is the parent's to handle, and when the parent is killed the worker does not stay behind.
    """
    import torch

    global to_parent
    to_parent = news
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


@contextmanager
def ctrl_c_held() -> Generator[None]:
    """Processes started in this block ignore Ctrl-C from their first moment; importing torch takes them seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop(pool: ProcessPoolExecutor) -> None:
    """End the workers at once; what they had not finished has no record."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)


def has_record(path: Path) -> bool:
    """Whether a whole record is there; a damaged one is set aside."""
    from posenc.lab import record

    if not path.exists():
        return False
    try:
        record.read(path)
    except ValueError as error:
        aside = path.with_suffix(".damaged")
        os.replace(path, aside)
        print(f"{error.args[0].split(';')[0]}; set aside as {aside.name}, the run is made again", file=sys.stderr)
        return False
    return True


def make_folder(folder: Path) -> None:
    """Raises ValueError when the folder cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-test"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write into '{folder}': {error.strerror}; choose another folder with --out") from None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
