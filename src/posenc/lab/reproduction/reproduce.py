"""Reproduce a published claim: run it, compare its numbers with the paper's, and write a verdict."""

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
"""The number of seeds of a verdict."""

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
"""The types of a verdict's file; numbers are in the order of the seeds, without any if only published."""


def reproduce(
    name: str,
    folder: Path,
    *,
    tier: str = CPU,
    seed_from: int = FIRST_SEED,
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> dict[str, Any]:
    """Run what is missing of a claim's three seeds, write report and verdict, and return the verdict.

    Raises ValueError for an unknown claim or tier, and for an unwritable folder; RuntimeError if runs failed.
    """
    checks.one_of("--tier", tier, TIERS)
    claim = claim_of(name)
    seeds = range(seed_from, seed_from + SEEDS)
    runs = {(seed, label): replace(run, seed=seed) for seed in seeds for label, run in claim.runs(tier).items()}
    keys = {place: record.key_of(run) for place, run in runs.items()}
    check_buildable(list(runs.values()))
    with store.locked_folder(folder):
        examined_keys = frozenset(key for (_, label), key in keys.items() if label in claim.looked_into)
        further = ExtraMeasurements(name, folder / "further" / file_stem(name), examined_keys)
        # Several runs on one accelerator would share its memory.
        workers = None if tier == CPU else 1
        sweep = run_all(list(dict.fromkeys(runs.values())), folder, show=show, extra=further, workers=workers)
        if sweep.failures:
            key, reason = next(iter(sweep.failures.items()))
            problem = f"{len(sweep.failures)} of {len(sweep.runs)} runs failed, and all are needed"
            raise RuntimeError(f"{problem}; the first: {sweep.runs[key].words}: {reason}")
        records = {key: record.read(folder / "records" / f"{key}.json") for key in keys.values()}
        report.write(list(records.values()), folder)
        outcomes_of = {
            seed: {label: Outcome(records[key], further.read(key)) for (s, label), key in keys.items() if s == seed}
            for seed in seeds
        }
        command = f"posenc lab run {shlex.quote(name)} --tier {tier} --seed-from {seed_from}"
        verdict = verdict_record(claim, tier, {seed: claim.numbers(outcomes) for seed, outcomes in outcomes_of.items()})
        verdict |= {"claim": file_stem(name), "command": command, "runs": list(records), "versions": store.versions()}
        verdict["cpu_s"] = sum(run["cpu_s"] for run in records.values())
        store.write(folder / verdict_file(verdict), store.dump_json(verdict, indent=1))
    return verdict


def file_stem(name: str) -> str:
    """Return the name of a claim for file names: of path/to/mine.py:Mine the class."""
    return name.rpartition(":")[2]


def verdict_file(verdict: Mapping[str, Any]) -> str:
    """Return the file name of a verdict."""
    return f"{verdict['claim']}-{verdict['tier']}-{verdict['seeds'][0]}.json"


@dataclass(frozen=True)
class ExtraMeasurements:
    """The extra measurements of a claim on trained models, one file for each run.

    claim  the name of the claim
    keys   the runs that it measures
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
            store.write(self.file(key), store.dump_json({"further": claim_of(self.claim).look_into(run)}))

    def read(self, key: str) -> dict[str, Any]:
        """Read the measurements of a run. Raises CannotRead with the remedy."""
        if key not in self.keys:
            return {}
        try:
            content = store.read_checked_json(self.file(key))
            matches(content, {"further": {"*": [{"length": int, "*": Any}]}}, file=self.file(key))
        except CannotRead as error:
            raise CannotRead(f"{error}; delete it and give the command again, which makes its run again") from None
        return content["further"]


def verdict_record(claim: Claim, tier: str, by_seed: Mapping[int, Numbers]) -> dict[str, Any]:
    """Return the verdict on the numbers of some seeds, as in its file, but without its provenance.

    An inequality holds if it holds with every seed, and fails if it fails with one. The claim is reproduced if all
    hold, and not if one fails; it cannot be tested if a task that an inequality needs was not learned.
    """
    lines = [criterion_record(inequality, list(by_seed.values())) for inequality in claim.criteria]
    names = dict.fromkeys(name for numbers in by_seed.values() for name in numbers)
    return {
        "schema": SCHEMA,
        "claim": claim.spec_name,
        "says": claim.says,
        "source": claim.source,
        "tier": tier,
        "seeds": list(by_seed),
        **overall_verdict(lines),
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


def criterion_record(line: Inequality, by_seed: Sequence[Numbers]) -> dict[str, Any]:
    """Return an inequality with its measured values, its bounds and its verdict."""
    results = [line.holds(numbers) for numbers in by_seed]
    return {
        "words": str(line),
        "measured": [numbers[line.left] for numbers in by_seed],
        "bounds": [line.bound(numbers) for numbers in by_seed],
        "verdict": FAILS if False in results else NOT_LEARNED if None in results else HOLDS,
    }


def overall_verdict(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the verdict and its reason."""
    verdicts = [line["verdict"] for line in lines]
    failed_lines = [line["words"] for line in lines if line["verdict"] == FAILS]
    if failed_lines:
        return {"verdict": NOT_REPRODUCED, "why": f"fails: {'; '.join(failed_lines)}"}
    if NOT_LEARNED in verdicts:
        return {"verdict": NOT_TESTABLE, "why": "not every run that it needs has learned its task"}
    return {"verdict": REPRODUCED, "why": f"all {len(lines)} inequalities hold with every seed"}


def read(path: Path) -> dict[str, Any]:
    """Read a verdict's file, plain or compressed, and check its checksum and types. Raises CannotRead."""
    verdict = store.read_checked_json(path)
    matches(verdict, FORM, file=path)
    return verdict
