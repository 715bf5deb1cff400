"""What a claim is: runs, the numbers that come of them for each seed, and the inequalities that decide it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from posenc import checks
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.runs.train import Run
from posenc.specs.registry import Named

CPU, GPU = "cpu", "gpu"
TIERS = (CPU, GPU)
"""How large a claim is run: minutes on two cores, or minutes on one accelerator."""

SIGNS = (">=", "<=")

Sizes = Mapping[str, Mapping[str, Any]]
"""For each tier changes of a task's recipe, which is searched on a small CPU."""

Numbers = Mapping[str, float | None]
"""What was measured with one seed, by name; None where the runs that it needs have not learned their task."""


@dataclass(frozen=True)
class Inequality:
    """A line of a criterion: what is measured with one seed, against a bound.

    left  sign  times right + plus

    left, right   names of what is measured; right may be a number
    sign          ">=" or "<="
    times, plus   the margin, where right is a name

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
        """What the left side has to keep to with this seed; None where that has not been learned."""
        right = numbers[self.right] if isinstance(self.right, str) else self.right
        return None if right is None else self.times * right + self.plus

    def holds(self, numbers: Numbers) -> bool | None:
        """Whether it is so with this seed; None where it cannot be decided."""
        left, bound = numbers[self.left], self.bound(numbers)
        if left is None or bound is None:
            return None
        return left >= bound if self.sign == ">=" else left <= bound


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    record   as the laboratory keeps it
    further  what the claim has measured of the trained model besides: by name, rows as those of record["lengths"]

    Its numbers are None where the run has not learned its task: then they say nothing of the claim.
    """

    record: Mapping[str, Any]
    further: Mapping[str, Any] = field(default_factory=dict)

    @property
    def learned(self) -> bool:
        return self.record["learned"]

    def score(self, measure: str, factor: float = 1, of: str = "") -> float | None:
        """A measure of record["lengths"] at a multiple of the trained length, or of what was measured further."""
        return self.unlearned(measure, factor, of) if self.learned else None

    def unlearned(self, measure: str, factor: float = 1, of: str = "") -> float:
        """The same, whether the task was learned or not: for claims that it is not."""
        length = round(factor * self.record["experiment"]["train_length"])
        rows = self.further[of] if of else self.record["lengths"]
        return next(row[measure] for row in rows if row["length"] == length)

    def ratio(self, factor: float, of: str = "", measure: str = "bits_per_byte") -> float | None:
        """R(k): the perplexity per byte at a multiple of the trained length, beside that of the trained model there.

        R(k) = 2^(bits(k) - bits(1))
        """
        there, trained = self.score(measure, factor, of), self.score(measure)
        return None if there is None or trained is None else 2 ** (there - trained)


@dataclass(frozen=True, kw_only=True)
class Claim(Named):
    """A published result, and what would reproduce or refute it. One of your own is a subclass in a file of yours.

    says        the claim in one sentence
    source      where it is published, with the table or section
    published   the paper's numbers, by the names of what is measured here
    sizes       tier -> changes of the recipes of its runs
    criteria    the inequalities that decide it: it is reproduced where all of them hold with every seed
    looked_into  the labels of the runs whose models `look_into` measures further

    It has to say `runs` and `numbers`.
    """

    says: ClassVar[str] = ""
    source: ClassVar[str] = ""
    published: ClassVar[Mapping[str, float]] = MappingProxyType({})
    sizes: ClassVar[Sizes] = MappingProxyType({})
    criteria: ClassVar[tuple[Inequality, ...]] = ()
    looked_into: ClassVar[tuple[str, ...]] = ()

    def runs(self, tier: str) -> Mapping[str, Experiment]:
        """What is run with every seed, by a label."""
        raise NotImplementedError(f"{self} does not say what is run: it has no runs(tier)")

    def numbers(self, found: Mapping[str, Outcome]) -> Numbers:
        """What the runs of one seed come to, from their outcomes by label."""
        raise NotImplementedError(f"{self} does not say what is measured: it has no numbers(found)")

    def look_into(self, run: Run) -> Mapping[str, Any]:
        """What else is measured of a trained model: by name, rows as those of record["lengths"]."""
        raise NotImplementedError(f"{self} does not say how models are looked into: it has no look_into(run)")
