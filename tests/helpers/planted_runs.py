"""Small runs and made-up records of them, for tests that need many without training."""

from pathlib import Path

import fake_records

from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import record


def runs(count: int) -> list[Experiment]:
    """Return `count` runs that differ by their seed."""
    return [recipe("repeat", "none", seed, steps=2, train_length=2, dim=8, heads=1, layers=1) for seed in range(count)]


def write_record(folder: Path, experiment: Experiment, key: str) -> None:
    entries = fake_records.record("none", "repeat", experiment.seed, key=key, experiment=experiment.to_dict())
    record.write(entries, folder)
