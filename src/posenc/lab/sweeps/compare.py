"""A comparison: train every encoding on every task, then write one report."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import FIRST_SEED
from posenc.lab.loggers import loggers_of
from posenc.lab.runs import record
from posenc.lab.runs.settings import Settings, sort_by_settings, write_settings
from posenc.lab.sweeps.sweep import Sweep, run_all

SEARCH_SEEDS = (90, 91)
"""The seeds of the search for a rate; results never include them."""


def compare(
    settings: Settings,
    folder: Path,
    *,
    log: Sequence[str] = (),
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> tuple[list[dict[str, Any]], Path, Sweep]:
    """Train the missing runs and write the report; return (the records, the report's path, the sweep).

    log  specs of loggers for each run

    Raises ValueError for bad settings and an unwritable folder; RuntimeError when every run failed.
    """
    from posenc.lab.results import report

    # A missing library is an error before training.
    loggers_of(log)
    runs = settings.experiments()
    if settings.rates and (clash := sorted({run.seed for run in runs} & set(SEARCH_SEEDS))):
        raise ValueError(f"the seeds {clash} are those on which rates are chosen; begin with --seed-from {FIRST_SEED}")
    with store.locked_folder(folder):
        write_settings(settings, folder)
        if settings.rates:
            runs = at_best_rates(runs, settings.rates, folder / "search", show)
        sweep = run_all(runs, folder, log=log, show=show)
        keys = [key for key in sweep.runs if key not in sweep.failures]
        if not keys:
            raise RuntimeError(f"every run failed; the first: {next(iter(sweep.failures.values()))}")
        records = sort_by_settings(record.summary_records(folder, keys), asdict(settings))
        failures = [sweep.runs[key].failure(reason) for key, reason in sweep.failures.items()]
        return records, report.write(records, folder, asdict(settings), failures), sweep


def at_best_rates(
    runs: Sequence[Experiment], rates: Sequence[float], folder: Path, show: Callable[[Sweep], None]
) -> list[Experiment]:
    """The runs, each at the rate with its encoding's lowest loss on its task over the search seeds.

    The loss is that of the last point of the curve (fresh sequences of the trained lengths), averaged over the seeds. A
    rate with a failed run, whose loss is not finite, is not chosen. The search has its own folder of records.

    Raises RuntimeError where every rate of an encoding fails.
    """
    kinds = list(dict.fromkeys(replace(run, seed=0) for run in runs))
    trials = {
        (kind, rate): [replace(kind, seed=seed, rate=rate, test_lengths=()) for seed in SEARCH_SEEDS]
        for kind in kinds
        for rate in rates
    }
    search_runs = [run for of_seeds in trials.values() for run in of_seeds]
    with store.locked_folder(folder):
        sweep = run_all(search_runs, folder, show=show)
    loss = {run: value for run in search_runs if (value := final_loss(run, sweep, folder)) is not None}
    best = {}
    for kind in kinds:
        means = {
            rate: sum(loss[run] for run in trials[kind, rate]) / len(SEARCH_SEEDS)
            for rate in rates
            if all(run in loss for run in trials[kind, rate])
        }
        if not means:
            first = next(iter(sweep.failures.values()))
            raise RuntimeError(f"{kind.spec} on {kind.task} failed at every rate; the first: {first}")
        best[kind] = min(means, key=means.__getitem__)
    return [replace(run, rate=best[replace(run, seed=0)]) for run in runs]


def final_loss(run: Experiment, sweep: Sweep, folder: Path) -> float | None:
    """The loss at the last point of a run's curve; None where the run failed."""
    key = record.key_of(run)
    return None if key in sweep.failures else record.read(record.record_path(folder, key))["curve"][-1]["loss"]
