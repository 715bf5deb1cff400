"""The goals of each row, stored in goals.json so that any result can be checked.

The file lists goals by word of the command line, case (a pattern, * for anything) and candidate:

    at most 1.1 x plain causal SDPA            the row's cost divided by that of another candidate of the case
    at least 20 x as fast as transformers      the same ratio inverted
    at most 64 MiB                             the row's own measured value
    error at most 2e-06                        the row's largest difference from float64
"""

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

RowDict = Mapping[str, Any]
"""A row as plain values, from Row.to_dict() or JSON."""

FILE = Path(__file__).with_name("goals.json")

SENTENCE = re.compile(
    r"error at most (?P<error>\S+)"
    r"|at least (?P<faster>\S+) x as fast as (?P<than_faster>.+)"
    r"|at most (?P<bound>\S+) (?:x (?P<than>.+)|(?P<unit>.+))"
)


@dataclass(frozen=True)
class Goal:
    """The bound on a row's measured value, divided by `than`'s if given.

    bound  the largest value that meets the goal
    than   the candidate of the same case by whose cost this row's is divided; "" for an absolute value
    quantity  what is measured: "cost", "error", or the row's own unit ("MiB", "s of CPU", "graphs")
    """

    bound: float
    than: str = ""
    quantity: str = "cost"

    @classmethod
    def parse(cls, sentence: str) -> "Goal":
        """Parse a goal from a sentence. Raises ValueError if it states none."""
        match = SENTENCE.fullmatch(sentence)
        if match is None:
            raise ValueError(
                f"no goal is said by {sentence!r}; write 'at most 1.1 x NAME', 'at least 20 x as fast as NAME', "
                f"'at most 64 MiB' or 'error at most 2e-06'"
            )
        if match["error"]:
            return cls(float(match["error"]), quantity="error")
        if match["faster"]:
            return cls(1 / float(match["faster"]), match["than_faster"])
        return cls(float(match["bound"]), match["than"] or "", "cost" if match["than"] else match["unit"])

    def __str__(self) -> str:
        if self.quantity == "error":
            return f"error at most {self.bound:g}"
        if not self.than:
            return f"at most {self.bound:g} {self.quantity}"
        if self.bound < 1:
            return f"at least {1 / self.bound:g} x as fast as {self.than}"
        return f"at most {self.bound:g} x {self.than}"


@dataclass(frozen=True)
class Verdict:
    """A goal with its measured value. The value is None if the compared candidate could not run."""

    goal: Goal
    measured_value: float | None

    @property
    def is_met(self) -> bool | None:
        """Return whether the goal is met, rounded to the three digits shown."""
        return None if self.measured_value is None else float(f"{self.measured_value:.3g}") <= self.goal.bound


@cache
def read_goals() -> dict[str, dict[str, dict[str, list[str]]]]:
    """Read goals.json: what -> case -> candidate -> goals."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def goals_of(row: RowDict) -> Iterator[Goal]:
    """Yield the goals of one row."""
    for case, candidates in read_goals().get(row["what"], {}).items():
        if fnmatch.fnmatchcase(row["case"], case):
            yield from map(Goal.parse, candidates.get(row["candidate"], ()))


def verdicts(row: RowDict, case: Sequence[RowDict]) -> list[Verdict]:
    """Compare every goal of a row with the measurements of its case."""
    return (
        [Verdict(goal, measured_value(goal, row, case)) for goal in goals_of(row)] if row["value"] is not None else []
    )


def measured_value(goal: Goal, row: RowDict, case: Sequence[RowDict]) -> float | None:
    """Return the measured value for a goal, or None if it was not measured."""
    if goal.quantity == "error":
        return row["error"]
    if not goal.than:
        return row["value"]
    costs = [
        candidate_row["value"]
        for candidate_row in case
        if candidate_row["candidate"] == goal.than and candidate_row["value"]
    ]
    return row["value"] / costs[0] if costs else None
