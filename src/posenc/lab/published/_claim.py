"""Define claims: runs, the numbers that follow from them for each seed, and the inequalities that decide."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from posenc import checks
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.runs.train import Run
from posenc.specs.registry import SpecObject

CPU, GPU = "cpu", "gpu"
TIERS = (CPU, GPU)
"""The sizes of a claim: minutes on two cores, or minutes on one accelerator."""

SIGNS = (">=", "<=")

Sizes = Mapping[str, Mapping[str, Any]]
"""Tier -> changes of a task's recipe, which was searched on a small CPU."""

Numbers = Mapping[str, float | None]
"""Name -> a number measured with one seed; None if the runs that it needs have not learned their task."""


@dataclass(frozen=True)
class Inequality:
    """An inequality between a number measured with one seed and a bound.

    left  sign  times right + plus

    left, right   names of numbers; right may be a number itself
    sign          ">=" or "<="
    times, plus   the margin, if right is a name

    >>> str(Inequality("R(sinusoidal, 2)", ">=", "R(rotary, 2)", times=1.1))
    'R(sinusoidal, 2) >= 1.1 x R(rotary, 2)'
    """

    left: str
    sign: str
    right: str | float
    times: float = 1.0
    plus: float = 0.0

    def __post_init__(self) -> None:
        checks.one_of("sign", self.sign, SIGNS)

    def __str__(self) -> str:
        times = "" if self.times == 1 else f"{self.times:g} x "
        plus = "" if self.plus == 0 else f" {'+' if self.plus > 0 else '-'} {abs(self.plus):g}"
        right = self.right if isinstance(self.right, str) else f"{self.right:g}"
        return f"{self.left} {self.sign} {times}{right}{plus}"

    def bound(self, numbers: Numbers) -> float | None:
        """Return the bound of the left side with this seed; None if its run has not learned."""
        right = numbers[self.right] if isinstance(self.right, str) else self.right
        return None if right is None else self.times * right + self.plus

    def holds(self, numbers: Numbers) -> bool | None:
        """Whether the inequality holds with this seed; None if it cannot be decided."""
        left, bound = numbers[self.left], self.bound(numbers)
        if left is None or bound is None:
            return None
        return left >= bound if self.sign == ">=" else left <= bound


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run.

    record   of the laboratory
    further  the extra measurements of the trained model: name -> rows as those of record["lengths"]

    Its numbers are None if the run has not learned its task.
    """

    record: Mapping[str, Any]
    further: Mapping[str, Any] = field(default_factory=dict)

    @property
    def learned(self) -> bool:
        return self.record["learned"]

    def score(self, measure: str, factor: float = 1, extra: str = "") -> float | None:
        """Return a measure at a multiple of the trained length, of record["lengths"] or of an extra measurement."""
        return self.raw_score(measure, factor, extra) if self.learned else None

    def raw_score(self, measure: str, factor: float = 1, extra: str = "") -> float:
        """Return the same, whether the task was learned or not, for claims that a task is not learned."""
        length = round(factor * self.record["experiment"]["train_length"])
        rows = self.further[extra] if extra else self.record["lengths"]
        return next(row[measure] for row in rows if row["length"] == length)

    def ratio(self, factor: float, extra: str = "", measure: str = "bits_per_byte") -> float | None:
        """Return R(k), the perplexity per byte at k times the trained length over that at the trained length.

        R(k) = 2^(bits(k) - bits(1))
        """
        longer, base = self.score(measure, factor, extra), self.score(measure)
        return None if longer is None or base is None else 2 ** (longer - base)


@dataclass(frozen=True, kw_only=True)
class Claim(SpecObject):
    """A published result, and what would reproduce or refute it. A subclass in a file is a claim of the user's.

    says        the claim in one sentence
    source      where it is published, with the table or section
    published   the paper's numbers, by the names of the numbers here
    sizes       tier -> changes of the recipes of its runs
    criteria    the inequalities that decide it: it is reproduced if all of them hold with every seed
    looked_into  the labels of the runs whose models `look_into` measures further

    A subclass defines `runs` and `numbers`.
    """

    says: ClassVar[str] = ""
    source: ClassVar[str] = ""
    published: ClassVar[Mapping[str, float]] = MappingProxyType({})
    sizes: ClassVar[Sizes] = MappingProxyType({})
    criteria: ClassVar[tuple[Inequality, ...]] = ()
    looked_into: ClassVar[tuple[str, ...]] = ()

    def runs(self, tier: str) -> Mapping[str, Experiment]:
        """Return the runs of each seed, by label."""
        raise NotImplementedError(f"{self} does not say what is run: it has no runs(tier)")

    def numbers(self, outcomes: Mapping[str, Outcome]) -> Numbers:
        """Return the numbers of one seed from the outcomes of its runs, by label."""
        raise NotImplementedError(f"{self} does not say what is measured: it has no numbers(outcomes)")

    def look_into(self, run: Run) -> Mapping[str, Any]:
        """Return extra measurements of a trained model: name -> rows as those of record["lengths"]."""
        raise NotImplementedError(f"{self} does not say how models are looked into: it has no look_into(run)")
