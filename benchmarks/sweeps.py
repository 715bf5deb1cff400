"""What sweeps cost: runs per minute by the number of workers, and what thousands of runs take of the driver.

Simulated runs sleep in place of training, and their records are copies of one real record under other names; rows of
them say so. `python benchmarks/sweeps.py --help` says how to repeat a part of it.
"""

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import record
from posenc.lab.sweeps.engines import Local
from posenc.lab.sweeps.engines.worker import NOTHING_BESIDES, Besides, made
from posenc.lab.sweeps.sweep import cores, run_all

SIZES = {"steps": 20, "dim": 16, "heads": 2, "layers": 1, "train_length": 4, "test_lengths": (5, 6, 8)}
TASKS, ENCODINGS = ("copy", "reverse", "sort", "repeat", "odds_first"), 20
KEPT = ("none", "rotary", "alibi")


def experiments(count: int) -> Iterator[Experiment]:
    """So many runs: five tasks, 20 encodings, and as many seeds as it takes."""
    specs = [*KEPT, *(f"rotary(base={100 + number})" for number in range(ENCODINGS - len(KEPT)))]
    for place in range(count):
        seed, rest = divmod(place, len(TASKS) * ENCODINGS)
        yield recipe(TASKS[rest % len(TASKS)], specs[rest // len(TASKS)], seed, **SIZES)


def one_record() -> dict[str, Any]:
    """A real record, of a few steps."""
    run = next(experiments(1))
    return made(run, record.key_of(run), lambda **changes: None)


def copied(real: dict[str, Any], experiment: Experiment, key: str) -> dict[str, Any]:
    """The record as that of another run, which has learned."""
    return real | {"experiment": experiment.to_dict(), "key": key, "encoding": str(experiment.spec), "learned": True}


def asleep(
    seconds: float, real: dict[str, Any], experiment: Experiment, key: str, tell: Any, *others: Any
) -> dict[str, Any]:
    """A simulated run."""
    time.sleep(seconds)
    tell(step=experiment.steps, share=1.0)
    return copied(real, experiment, key)


class Simulating(Local):
    """Processes of this machine that sleep."""

    def __init__(self, count: int, seconds: float, real: dict[str, Any]) -> None:
        super().__init__(count)
        self.make = functools.partial(asleep, seconds, real)

    def open(self, experiments: Any, records: Path, besides: Besides = NOTHING_BESIDES) -> None:
        super().open(experiments, records, Besides(make=self.make))


def by_workers(seconds: float, counts: list[int], runs: int) -> Iterator[dict[str, Any]]:
    """Runs per minute, and CPU seconds of the driver for each: real up to the cores that there are, then simulated."""
    real = one_record()
    for count in counts:
        for simulated in (False, True):
            if not simulated and count > cores():
                continue
            engine = Simulating(count, seconds, real) if simulated else Local(count)
            with tempfile.TemporaryDirectory() as folder, store.held(Path(folder)):
                # Each worker imports torch once, which is no part of a long sweep.
                total = runs * count
                points: list[tuple[int, float]] = []
                before = time.process_time()
                run_all(
                    list(experiments(total)), Path(folder), engine=engine,
                    show=lambda sweep, points=points: points.append((sweep.done, time.monotonic())),
                )  # fmt: skip
                driver = time.process_time() - before
            (first, began), (last, ended) = next(point for point in points if point[0] >= count), points[-1]
            yield {
                "what": "runs per minute", "workers": count, "simulated": simulated, "runs": total,
                "per minute": round(60 * (last - first) / (ended - began), 1),
                "driver, ms of CPU for each": round(1000 * driver / total, 2),
            }  # fmt: skip


def of_the_driver(count: int, *, report: bool) -> Iterator[dict[str, Any]]:
    """What so many simulated records take: to make them known, to start on them again, and to report on them."""
    real = one_record()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "records").mkdir()
        runs = list(experiments(count))
        for run in runs:
            made_up = copied(real, run, key := record.key_of(run))
            (folder / "records" / f"{key}.json").write_bytes(store.sealed(made_up))
        del runs
        for what in ("first start", "start", *(["report"] if report else [])):
            yield apart(what, folder, count)


def apart(what: str, folder: Path, count: int) -> dict[str, Any]:
    """One thing that a driver does, in a process of its own: its seconds, and the peak of its memory."""
    done = subprocess.run(
        [sys.executable, __file__, "--do", what, "--folder", str(folder), "--runs", str(count)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return {"what": what, "runs": count, "simulated": True, **json.loads(done.stdout.splitlines()[-1])}


def do(what: str, folder: Path, count: int) -> dict[str, Any]:
    imported, wall = time.process_time(), time.monotonic()
    if what == "report":
        from posenc.lab.results import report
        from posenc.lab.runs import index

        report.write(index.records(folder), folder)
    else:
        with store.held(folder):
            run_all(list(experiments(count)), folder)
    seconds = time.process_time() - imported
    return {
        "CPU s": round(seconds, 1),
        "wall s": round(time.monotonic() - wall, 1),
        "ms for each": round(1000 * seconds / count, 2),
        "peak, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 8, 32], help="how many at once")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a simulated run sleeps")
    parser.add_argument("--each", type=int, default=15, help="runs for each worker")
    parser.add_argument("--runs", type=int, nargs="*", default=[1_000, 10_000], help="how many records to start on")
    parser.add_argument("--without-report", action="store_true", help="start on them only")
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.do:
        print(json.dumps(do(given.do, given.folder, given.runs[0])))
        return
    print(json.dumps({"machine": store.processor(), "cores": cores(), "load": os.getloadavg()[0]}))
    for row in by_workers(given.seconds, given.workers, given.each):
        print(json.dumps(row), flush=True)
    for count in given.runs:
        for row in of_the_driver(count, report=not given.without_report):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
