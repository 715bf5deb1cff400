"""What is still to run, in which order, and what it will take."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from posenc.lab.board import scope, tables
from posenc.lab.board.costs import Costs
from posenc.lab.experiments import recipes
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import A_SECOND
from posenc.lab.results.summary import Record, duration, get, number, spec_of, task_of
from posenc.lab.runs import record

MEASURED_TOKEN = 0.010
"""CPU seconds that a token of the tested lengths takes, over all sequences of that length, as `cost` is: roughly."""


@dataclass(frozen=True)
class Plan:
    """What is missing: key -> run, the most informative first.

    search    the runs that choose the encodings' rates
    evidence  the runs that count; where the search is not over, their rates may still change
    done      how many of all runs have a row
    seconds   key -> CPU seconds that a run will take, as far as that is known before
    """

    search: Mapping[str, Experiment]
    evidence: Mapping[str, Experiment]
    done: int
    seconds: Mapping[str, float]

    def total(self, runs: Collection[str]) -> float:
        return sum(self.seconds[key] for key in runs)


def plan(pairs: Sequence[tuple[str, str]], rows: Sequence[Record], costs: Costs, seeds: Sequence[int]) -> Plan:
    """The runs that have no row, of pairs (task, encoding): all with the first seed, then with the next."""
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
    missing = [{key: run for run in runs if (key := record.key_of(run)) not in there} for runs in (first, then)]
    seconds = estimates([*missing[0].items(), *missing[1].items()], rows, costs)
    return Plan(*missing, done=len(first) + len(then) - sum(map(len, missing)), seconds=seconds)


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


def estimates(runs: Sequence[tuple[str, Experiment]], rows: Sequence[Record], costs: Costs) -> dict[str, float]:
    """CPU seconds of runs: what others of the same encoding on the same task took, else by the cost of its steps."""
    took: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        took.setdefault((task_of(row), spec_of(row)), []).append(number(get(row, "cpu_s")) or 0.0)

    def seconds(run: Experiment) -> float:
        label = scope.label(",".join(run.specs))
        if known := took.get((run.task, label)):
            return statistics.median(known)
        made = run.made_task()
        tested = sum(made.tokens(length) for length in (run.train_length, *run.test_lengths))
        trains = recipes.cost(run) / costs.speed + tested * MEASURED_TOKEN * A_SECOND / costs.speed
        return trains * (costs.of[label].step if label in costs.of else 1.0)

    return {key: seconds(run) for key, run in runs}


def in_words(made: Plan) -> tuple[list[str], list[list[str]]]:
    """The plan as a table: headings, and a line for each stage and seed."""
    stages = {"search of the rates": list(made.search)}
    for key, run in made.evidence.items():
        stages.setdefault(f"seed {run.seed}", []).append(key)
    lines = [[stage, str(len(keys)), duration(made.total(keys))] for stage, keys in stages.items()]
    everything = made.total([*made.search, *made.evidence])
    lines.append(["all", str(len(made.search) + len(made.evidence)), duration(everything)])
    return ["to do", "runs", "CPU time, estimated"], lines
