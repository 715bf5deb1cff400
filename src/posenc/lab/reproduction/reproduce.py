"""A published claim run again and judged: its runs, its numbers beside the paper's, and a verdict that is kept."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posenc import checks
from posenc.foreign import CannotRead, matches
from posenc.lab import store
from posenc.lab.experiments.recipes import FIRST_SEED
from posenc.lab.published import CPU, TIERS, Claim, Inequality, Outcome, claim_of
from posenc.lab.published._claim import Numbers
from posenc.lab.results import report
from posenc.lab.runs import record
from posenc.lab.runs.settings import check_buildable
from posenc.lab.runs.train import Run
from posenc.lab.sweeps.sweep import Sweep, run_all

SEEDS = 3
"""The seeds that a verdict rests on."""

REPRODUCED, NOT_REPRODUCED, NOT_TESTABLE = "reproduced", "not reproduced", "not testable at this size"
HOLDS, FAILS, NOT_LEARNED = "holds", "fails", "not learned"

SCHEMA = 1
NUMBER = (float, None)
FORM: dict[str, Any] = {
    "schema": int,
    **dict.fromkeys(("claim", "says", "source", "tier", "command", "verdict", "why"), str),
    "seeds": [int],
    "numbers": [{"name": str, "published": NUMBER, "here": [NUMBER]}],
    "criteria": [{"words": str, "measured": [NUMBER], "bounds": [NUMBER], "verdict": str}],
    "runs": [str],
    "cpu_s": float,
    "versions": {"*": Any},
}
"""What a verdict's file holds; numbers are in the order of the seeds, and none where it is only published."""


def reproduce(
    name: str,
    folder: Path,
    *,
    tier: str = CPU,
    seed_from: int = FIRST_SEED,
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> dict[str, Any]:
    """Run what is missing of a claim with three seeds, judge it, and write report and verdict: what the latter holds.

    Raises ValueError for an unknown claim or tier, and for an unwritable folder; RuntimeError where runs failed.
    """
    checks.one_of("--tier", tier, TIERS)
    claim = claim_of(name)
    seeds = range(seed_from, seed_from + SEEDS)
    runs = {(seed, label): replace(one, seed=seed) for seed in seeds for label, one in claim.runs(tier).items()}
    keys = {place: record.key_of(one) for place, one in runs.items()}
    check_buildable(list(runs.values()))
    with store.held(folder):
        looked_into = frozenset(key for (_, label), key in keys.items() if label in claim.looked_into)
        further = Further(name, folder / "further" / short(name), looked_into)
        # Runs on one accelerator would share its memory.
        workers = None if tier == CPU else 1
        sweep = run_all(list(dict.fromkeys(runs.values())), folder, show=show, also=further, workers=workers)
        if sweep.failures:
            key, reason = next(iter(sweep.failures.items()))
            wrong = f"{len(sweep.failures)} of {len(sweep.runs)} runs failed, and all are needed"
            raise RuntimeError(f"{wrong}; the first: {sweep.runs[key].words}: {reason}")
        records = {key: record.read(folder / "records" / f"{key}.json") for key in keys.values()}
        report.write(list(records.values()), folder)
        found = {
            seed: {label: Outcome(records[key], further.read(key)) for (of, label), key in keys.items() if of == seed}
            for seed in seeds
        }
        command = f"posenc lab run {shlex.quote(name)} --tier {tier} --seed-from {seed_from}"
        told = judged(claim, tier, {seed: claim.numbers(outcomes) for seed, outcomes in found.items()})
        told |= {"claim": short(name), "command": command, "runs": list(records), "versions": store.versions()}
        told["cpu_s"] = sum(one["cpu_s"] for one in records.values())
        store.write(folder / file_of(told), store.sealed(told, indent=1))
    return told


def short(name: str) -> str:
    """The name of a claim that may stand in a file's: of path/to/mine.py:Mine the class."""
    return name.rpartition(":")[2]


def file_of(verdict: Mapping[str, Any]) -> str:
    """The name of a verdict's file."""
    return f"{verdict['claim']}-{verdict['tier']}-{verdict['seeds'][0]}.json"


@dataclass(frozen=True)
class Further:
    """What a claim measures of trained models besides their records, one file for each.

    claim  its name, by which a worker finds it too
    keys   the runs that it looks into
    """

    claim: str
    folder: Path
    keys: frozenset[str]

    def file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def has(self, key: str) -> bool:
        return key not in self.keys or self.file(key).exists()

    def measure(self, run: Run, key: str) -> None:
        if key in self.keys:
            store.write(self.file(key), store.sealed({"further": claim_of(self.claim).look_into(run)}))

    def read(self, key: str) -> dict[str, Any]:
        """What was measured. Raises CannotRead, with what to do."""
        if key not in self.keys:
            return {}
        try:
            found = store.read_json(self.file(key))
            matches(found, {"further": {"*": [{"length": int, "*": Any}]}}, file=self.file(key))
        except CannotRead as error:
            raise CannotRead(f"{error}; delete it and give the command again, which makes its run again") from None
        return found["further"]


def judged(claim: Claim, tier: str, by_seed: Mapping[int, Numbers]) -> dict[str, Any]:
    """The verdict on numbers of some seeds, in the form of its file, but for what made them.

    A line holds where it holds with every seed, and fails where it fails with one. The claim is reproduced where all
    lines hold, and not where one fails; where a task was not learned that a line needs, it cannot be tested.
    """
    lines = [line_of(one, list(by_seed.values())) for one in claim.criteria]
    names = dict.fromkeys(name for numbers in by_seed.values() for name in numbers)
    return {
        "schema": SCHEMA,
        "claim": claim.spec_name,
        "says": claim.says,
        "source": claim.source,
        "tier": tier,
        "seeds": list(by_seed),
        **verdict_of(lines),
        "numbers": [
            {
                "name": name,
                "published": claim.published.get(name),
                "here": [numbers[name] for numbers in by_seed.values() if name in numbers],
            }
            for name in names | dict.fromkeys(claim.published)
        ],
        "criteria": lines,
    }


def line_of(line: Inequality, by_seed: Sequence[Numbers]) -> dict[str, Any]:
    """One inequality, with what was measured, the bounds, and its verdict."""
    held = [line.holds(numbers) for numbers in by_seed]
    return {
        "words": str(line),
        "measured": [numbers[line.left] for numbers in by_seed],
        "bounds": [line.bound(numbers) for numbers in by_seed],
        "verdict": FAILS if False in held else NOT_LEARNED if None in held else HOLDS,
    }


def verdict_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The verdict, and why."""
    said = [line["verdict"] for line in lines]
    failed = [line["words"] for line in lines if line["verdict"] == FAILS]
    if failed:
        return {"verdict": NOT_REPRODUCED, "why": f"fails: {'; '.join(failed)}"}
    if NOT_LEARNED in said:
        return {"verdict": NOT_TESTABLE, "why": "not every run that it needs has learned its task"}
    return {"verdict": REPRODUCED, "why": f"all {len(lines)} inequalities hold with every seed"}


def read(path: Path) -> dict[str, Any]:
    """A verdict's file, as it was written or compressed, held to its checksum and form. Raises CannotRead."""
    found = store.read_json(path)
    matches(found, FORM, file=path)
    return found
