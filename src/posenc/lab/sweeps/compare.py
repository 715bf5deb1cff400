"""The comparison: every encoding on every task, then one table and one report."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import FIRST_SEED
from posenc.lab.loggers import loggers_of
from posenc.lab.runs import record
from posenc.lab.runs.settings import Settings, in_reading_order, write_settings
from posenc.lab.sweeps.sweep import Sweep, run_all

SEARCH_SEEDS = (90, 91)
"""The seeds on which a rate is chosen; no result is ever shown of them."""


def compare(
    settings: Settings,
    folder: Path,
    *,
    log: Sequence[str] = (),
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> tuple[list[dict[str, Any]], Path, Sweep]:
    """Run what is missing, and write the report: (the records of these settings, the report's path, the sweep).

    log  loggers, as specs, that are told of each run

    Raises ValueError for bad settings and an unwritable folder; RuntimeError when every run failed.
    """
    from posenc.lab.results import report

    # A library that is not there is told of before anything is trained.
    loggers_of(log)
    runs = settings.experiments()
    if settings.rates and (taken := sorted({run.seed for run in runs} & set(SEARCH_SEEDS))):
        raise ValueError(f"the seeds {taken} are those on which rates are chosen; begin with --seed-from {FIRST_SEED}")
    with store.held(folder):
        write_settings(settings, folder)
        if settings.rates:
            runs = at_best_rates(runs, settings.rates, folder / "search", show)
        sweep = run_all(runs, folder, log=log, show=show)
        keys = [key for key in sweep.runs if key not in sweep.failures]
        if not keys:
            raise RuntimeError(f"every run failed; the first: {next(iter(sweep.failures.values()))}")
        records = in_reading_order(record.for_summaries(folder, keys), asdict(settings))
        failed = [sweep.runs[key].failure(reason) for key, reason in sweep.failures.items()]
        return records, report.write(records, folder, asdict(settings), failed), sweep


def at_best_rates(
    runs: Sequence[Experiment], rates: Sequence[float], folder: Path, show: Callable[[Sweep], None]
) -> list[Experiment]:
    """The runs, each at the rate with which its encoding has the lowest loss on its task, on the seeds of the search.

    The loss is that of the last stretch of training (fresh sequences of the trained lengths), its mean over the seeds;
    a run that fails, because its loss is no number, is beaten by any that does not. The records of the search lie in
    their own folder.

    Raises RuntimeError where no rate of an encoding serves.
    """
    kinds = list(dict.fromkeys(replace(run, seed=0) for run in runs))
    tried = {
        (kind, rate): [replace(kind, seed=seed, rate=rate, test_lengths=()) for seed in SEARCH_SEEDS]
        for kind in kinds
        for rate in rates
    }
    every = [run for of_seeds in tried.values() for run in of_seeds]
    with store.held(folder):
        sweep = run_all(every, folder, show=show)
    loss = {run: value for run in every if (value := final_loss(run, sweep, folder)) is not None}
    best = {}
    for kind in kinds:
        means = {
            rate: sum(loss[run] for run in tried[kind, rate]) / len(SEARCH_SEEDS)
            for rate in rates
            if all(run in loss for run in tried[kind, rate])
        }
        if not means:
            first = next(iter(sweep.failures.values()))
            raise RuntimeError(f"{kind.spec} on {kind.task} failed at every rate; the first: {first}")
        best[kind] = min(means, key=means.__getitem__)
    return [replace(run, rate=best[replace(run, seed=0)]) for run in runs]


def final_loss(run: Experiment, sweep: Sweep, folder: Path) -> float | None:
    """The loss at the last point of a run's curve; None where the run failed."""
    key = record.key_of(run)
    return None if key in sweep.failures else record.read(record.file_of(folder, key))["curve"][-1]["loss"]
