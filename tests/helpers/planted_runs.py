"""Runs that stand in for training, where a test needs many, or needs them to die: each leaves a mark when it begins.

As a command it is the driver of a sweep on Ray: `planted_runs.py ADDRESS FOLDER HOME COUNT KINDS`, in JSON.
"""

import functools
import json
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fake_records

from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.sweeps.engines import Engine, Ray
from posenc.lab.sweeps.engines.worker import Besides
from posenc.lab.sweeps.sweep import Sweep, run_all

CURVE = ("loss", "score", "cpu_s")
BIG = 20_000
"""Points of the learning curve of a big record: some megabytes."""


def runs(count: int) -> list[Experiment]:
    """So many runs, which differ by their seed."""
    return [recipe("repeat", "none", seed, steps=2, train_length=2, dim=8, heads=1, layers=1) for seed in range(count)]


def make(home: Path, kinds: dict[int, str], experiment: Experiment, key: str, tell: Any, *others: Any) -> Any:
    """A made-up record of the run. What happens before depends on its kind, by its seed:

    killed       its process is killed, each time
    killed once  its process is killed the first time
    failing      it raises
    waiting      it waits until there is a file home/open
    big          its record takes some megabytes, and does not shrink to one message
    """
    seed, kind = experiment.seed, kinds.get(experiment.seed, "")
    first = not any(home.glob(f"{seed}-*"))
    (home / f"{seed}-{os.getpid()}-{secrets.token_hex(4)}").touch()
    tell(step=1, share=0.5, loss=1.0, score=0.0)
    if kind == "killed" or (kind == "killed once" and first):
        # So that what was told is on its way.
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "failing":
        raise ArithmeticError("planted")
    while kind == "waiting" and not (home / "open").exists():
        time.sleep(0.05)
    tell(state="measuring")
    found = fake_records.record("none", "repeat", seed, key=key, experiment=experiment.to_dict())
    if kind == "big":
        found["curve"] = [{"step": n, **{of: random.random() for of in CURVE}} for n in range(BIG)]
    return found


def began(home: Path) -> Counter[int]:
    """How often the run of each seed has begun."""
    return Counter(int(path.name.split("-")[0]) for path in home.glob("*-*"))


def sweep_on(engine: Engine, folder: Path, home: Path, count: int, kinds: dict[int, str]) -> Sweep:
    """A sweep of planted runs."""
    planted = functools.partial(make, home, kinds)
    opened = engine.open
    # The sweep itself asks for training.
    engine.open = lambda experiments, records, besides: opened(experiments, records, Besides(make=planted))
    with store.held(folder):
        return run_all(runs(count), folder, engine=engine)


if __name__ == "__main__":
    address, folder, home, count, kinds = sys.argv[1:]
    by_seed = {int(seed): kind for seed, kind in json.loads(kinds).items()}
    found = sweep_on(Ray(address), Path(folder), Path(home), int(count), by_seed)
    print(json.dumps({run.seed: [run.state, found.failures.get(key, "")] for key, run in found.runs.items()}))
