"""Plan the missing runs of the board, and their order."""

from collections.abc import Mapping, Sequence

from posenc.lab.board import scope, tables
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results.summary import Record, number
from posenc.lab.runs import record


def plan(
    pairs: Sequence[tuple[str, str]], rows: Sequence[Record], seeds: Sequence[int]
) -> dict[str, dict[str, Experiment]]:
    """Return the runs of pairs (task, encoding) without a row, by stage: key -> run, seed by seed.

    The runs of "search" choose the learning rates; until they are done, the rates of "evidence" may change.
    """
    keys = {row["key"] for row in rows}
    hopeless = tables.hopeless_pairs(rows)
    specs = list(dict.fromkeys(spec for _, spec in pairs))
    searches = {spec: search_runs(spec) for spec in specs}
    factors = {spec: rate_factor(searches[spec], rows) for spec in specs}
    search_list = [run for runs in searches.values() for by_task in runs.values() for run in by_task]
    evidence_list = [
        scope.experiment(task, spec, seed, factors[spec])
        for place, seed in enumerate(seeds)
        for task, spec in pairs
        if place < scope.FIRST_SEEDS or (task, scope.label(spec)) not in hopeless
    ]
    stages = {"search": search_list, "evidence": evidence_list}
    return {
        stage: {key: run for run in runs if (key := record.key_of(run)) not in keys} for stage, runs in stages.items()
    }


def search_runs(spec: str) -> dict[float, list[Experiment]]:
    """Return rate factor -> its search runs, on those search tasks that the encoding supports."""
    tasks = [task for task in scope.SEARCH_TASKS if not scope.refusal(task, spec)]
    return {
        factor: [scope.experiment(task, spec, scope.SEARCH_SEED, factor) for task in tasks]
        for factor in scope.RATE_FACTORS
    }


def rate_factor(search: Mapping[float, Sequence[Experiment]], rows: Sequence[Record]) -> float:
    """Return the factor whose runs learn soonest together, only among factors with all their runs."""
    by_key = {row["key"]: row for row in rows}
    groups = {factor: [by_key.get(record.key_of(run)) for run in runs] for factor, runs in search.items()}
    complete = {factor: [row for row in group if row] for factor, group in groups.items() if group and all(group)}
    return min(complete, key=lambda factor: sum(map(slowness, complete[factor])), default=scope.RATE_FACTORS[0])


def slowness(row: Record) -> float:
    """Return the share of its steps after which a run learned, else 1 plus its token error rate."""
    steps, learned_at = row["experiment"]["steps"], number(row["steps_to_learned"])
    return 2 - row["in_distribution"]["token_accuracy"] if learned_at is None else learned_at / steps
