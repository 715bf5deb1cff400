"""What is still to run, and in which order."""

from collections.abc import Mapping, Sequence

from posenc.lab.board import scope, tables
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results.summary import Record, number
from posenc.lab.runs import record


def plan(
    pairs: Sequence[tuple[str, str]], rows: Sequence[Record], seeds: Sequence[int]
) -> dict[str, dict[str, Experiment]]:
    """The runs of pairs (task, encoding) that have no row, by stage: key -> run, with the first seed, then the next.

    Those of "search" choose the encodings' rates; until that is over, rates of "evidence", which counts, may change.
    """
    there = {row["key"] for row in rows}
    far = tables.far_from_learned(rows)
    specs = list(dict.fromkeys(spec for _, spec in pairs))
    searches = {spec: search(spec) for spec in specs}
    factors = {spec: rate_factor(searches[spec], rows) for spec in specs}
    first = [run for runs in searches.values() for by_task in runs.values() for run in by_task]
    then = [
        scope.experiment(task, spec, seed, factors[spec])
        for place, seed in enumerate(seeds)
        for task, spec in pairs
        if place < scope.FIRST_SEEDS or (task, scope.label(spec)) not in far
    ]
    stages = {"search": first, "evidence": then}
    return {
        stage: {key: run for run in runs if (key := record.key_of(run)) not in there} for stage, runs in stages.items()
    }


def search(spec: str) -> dict[float, list[Experiment]]:
    """Rate factor -> the runs that it is judged by; none where the encoding has no meaning on those tasks."""
    on = [task for task in scope.SEARCH_TASKS if not scope.why_not(task, spec)]
    return {
        factor: [scope.experiment(task, spec, scope.SEARCH_SEED, factor) for task in on]
        for factor in scope.RATE_FACTORS
    }


def rate_factor(searched: Mapping[float, Sequence[Experiment]], rows: Sequence[Record]) -> float:
    """The factor whose runs learn soonest together; the recipes' own rates where it is not known of all of them."""
    by_key = {row["key"]: row for row in rows}
    found = {factor: [by_key.get(record.key_of(run)) for run in runs] for factor, runs in searched.items()}
    whole = {factor: [row for row in given if row] for factor, given in found.items() if given and all(given)}
    return min(whole, key=lambda factor: sum(map(slowness, whole[factor])), default=scope.RATE_FACTORS[0])


def slowness(row: Record) -> float:
    """How late a run learns, as a share of its steps: of one that did not, beyond 1 by what it answers wrong."""
    whole, reached = row["experiment"]["steps"], number(row["steps_to_learned"])
    return 2 - row["in_distribution"]["token_accuracy"] if reached is None else reached / whole
