"""Which encoding is ahead of which, and how far each carries: every order in words comes from `compare`.

Pairs of runs with one seed are compared, because they share their data and first weights, and only where both learned:
a run that did not says nothing about lengths and speed. It counts, as a failure, in how many seeds carry to a length.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median_low

from posenc.lab.results import statistics
from posenc.lab.results.statistics import Comparison, Spread
from posenc.lab.results.summary.runs import Record, Result, entries, get, number, results, sequences
from posenc.lab.results.summary.words import bits, listed, name, names_of, percent, times

# What the words mean. Exact match at a length:
CARRIES = 0.90
# Perplexity at k times the trained length over perplexity at the trained length, R(k):
FLAT = 1.05
EXPLODES = 1.5
# Differences of means up to these are not worth a claim; CPU time of one run varies by about as much.
SAME_TIME = 1.10
SAME_BITS = 0.01


@dataclass(frozen=True)
class Measure:
    """A number of a run by which encodings are compared.

    words      what it is called
    of         the number of one run; None where it was not measured
    form       how a difference is said, without its unit
    higher     whether more is better
    ratio      whether differences are ratios
    least      a difference up to this is called none (of a ratio: its logarithm)
    variance   of the number within its run
    unit       behind a difference
    """

    words: str
    of: Callable[[Record], float | None]
    form: Callable[[float], str]
    higher: bool = True
    ratio: bool = False
    least: float = 0.0
    variance: Callable[[Record], float] | None = None
    unit: str = ""

    def signed(self, difference: float) -> str:
        """A difference of scores, in the measure's own direction: first minus second, or first over second."""
        value = difference if self.higher else -difference
        return self.form(value) if self.ratio else f"{'-' if value < 0 else '+'}{self.form(abs(value))}"

    def score(self, run: Record) -> float | None:
        """The number of a run so that higher is better and differences are sums."""
        value = self.of(run)
        if value is None or not math.isfinite(value) or (self.ratio and value <= 0):
            return None
        value = math.log(value) if self.ratio else value
        return value if self.higher else -value


def entry_at(run: Record, factor: float) -> dict[str, object]:
    return next((entry for entry in entries(run) if number(get(entry, "factor")) == factor), {})


@lru_cache
def exact_match_at(factor: float) -> Measure:
    def of(run: Record) -> float | None:
        return number(get(entry_at(run, factor), "exact_match"))

    def variance(run: Record) -> float:
        return statistics.share_variance(of(run) or 0.0, sequences([entry_at(run, factor)]))

    return Measure(f"exact match at {times(factor)}", of, percent, variance=variance, unit=" points")


@lru_cache
def growth_at(factor: float) -> Measure:
    """R(k)."""
    return Measure(
        f"R({times(factor)[:-1]})",
        lambda run: number(get(entry_at(run, factor), "perplexity_ratio")),
        lambda x: times(math.exp(x)),
        higher=False,
        ratio=True,
    )


CPU_SECONDS = Measure(
    "CPU seconds to 99 %",
    lambda run: number(get(run, "cpu_s_to_learned")),
    lambda x: times(math.exp(x)),
    higher=False,
    ratio=True,
    least=math.log(SAME_TIME),
)
BITS = Measure(
    "bits per byte",
    lambda run: number(get(run, "in_distribution", "bits_per_byte")),
    bits,
    higher=False,
    least=SAME_BITS,
)


@lru_cache
def bits_at(factor: float) -> Measure:
    """Bits per byte in windows of a multiple of the trained length."""
    words = f"bits per byte at {times(factor)}"
    return replace(BITS, words=words, of=lambda run: number(get(entry_at(run, factor), "bits_per_byte")))


def reach_by(run: Record, measure: str, holds: Callable[[float], bool]) -> float | None:
    """The multiple of the trained length up to which a measure of one run holds at every tested length.

    1 where it holds no further, 0 where the run has not learned; None where no longer length was measured.
    """
    scores = sorted(
        (factor, score)
        for entry in entries(run)
        if (factor := number(get(entry, "factor"))) and factor > 1
        if (score := number(get(entry, measure))) is not None
    )
    if not scores:
        return None
    if run.get("learned") is not True:
        return 0.0
    reached = 1.0
    for factor, score in scores:
        if not holds(score):
            break
        reached = factor
    return reached


def reach_of(run: Record) -> float | None:
    """The multiple of the trained length up to which one run carries, by exact match; as `reach_by`."""
    return reach_by(run, "exact_match", lambda score: score >= CARRIES)


REACH = Measure("reach", reach_of, times)


def compare(found: Sequence[Result], measure: Measure) -> Comparison:
    """All pairs of encodings of one task in one measure, on the seeds where both learned."""
    first = next(iter(found), None)
    return first.once((measure, *found), lambda: compared(found, measure)) if first else compared(found, measure)


def compared(found: Sequence[Result], measure: Measure) -> Comparison:
    scores: dict[str, dict[object, float]] = {}
    variances: dict[str, dict[object, float]] = {}
    for result in found:
        for run in result.learned:
            seed, score = get(run, "experiment", "seed"), measure.score(run)
            if seed is not None and score is not None:
                scores.setdefault(result.label, {})[seed] = score
                if measure.variance:
                    variances.setdefault(result.label, {})[seed] = measure.variance(run)
    return statistics.compare(scores, variances or None, measure.least)


def measures_of(learners: Sequence[Result]) -> list[Measure]:
    """What encodings are compared in on a task: reach and speed, or on text bits per byte at each length, then R(k)."""
    if any(result.is_text for result in learners):
        far = sorted({factor for r in learners for _, factor, _ in r.beyond("perplexity_ratio") if factor})
        return [BITS, *map(bits_at, far), *map(growth_at, far[-1:])]
    last = max((factor for result in learners for _, factor, _ in result.beyond("exact_match")), default=None)
    return [*([REACH, exact_match_at(last)] if last else []), CPU_SECONDS]


def ahead(found: Sequence[Result], measure: Measure) -> list[Result]:
    """The encodings that are significantly better than every other one; often none."""
    first = compare(found, measure).first()
    return [result for result in found if result.label in first]


def order(found: Sequence[Result], measure: Measure) -> str:
    """A sentence on who is ahead of whom; empty where too few seeds were there to compare."""
    comparison = compare(found, measure)
    if not comparison.differences:
        return ""
    by_label = {result.label: result for result in found}
    if first := [by_label[label] for label in comparison.first()]:
        return f"In {measure.words}, {names_of(first)} {'is' if len(first) == 1 else 'are'} ahead of all others."
    won = {label: above for label in comparison.unbeaten() if (above := comparison.above(label))}
    if not won:
        return f"In {measure.words}, the seeds tell nobody apart."
    clauses = [f"{name(label)} is ahead of {names_of([by_label[x] for x in above])}" for label, above in won.items()]
    return f"In {measure.words}, {'; '.join(clauses)}."


def unseen(found: Sequence[Result], measures: Sequence[Measure]) -> str:
    """A sentence on the differences that so few seeds would not show."""
    parts, seeds = [], []
    for measure in measures:
        comparison = compare(found, measure)
        if not comparison.unseen:
            continue
        seeds += [difference.seeds for difference in comparison.differences]
        any_at_all = measure.variance is not None and comparison.unseen >= 1
        amount = "any" if any_at_all else f"below {measure.form(comparison.unseen)}{measure.unit}"
        parts.append(f"{amount} in {measure.words}")
    if not parts:
        return ""
    fewest = "" if min(seeds) == max(seeds) else ", the fewest of a pair,"
    return f"With {min(seeds)} seeds{fewest} these differences would go unseen: {listed(parts)}."


@dataclass(frozen=True)
class Carried:
    """How many of all seeds carry to a length: they learned, and hold there and at all lengths before.

    length, factor   the length, and the multiple of the trained one
    count, of        so many seeds of so many; those that did not learn are among them
    low, high        the 95 % interval of that share
    """

    length: float
    factor: float
    count: int
    of: int
    low: float
    high: float

    @classmethod
    def counted(cls, length: float, factor: float, count: int, of: int) -> "Carried":
        return cls(length, factor, count, of, *statistics.share_interval(count / of, of))

    @property
    def most(self) -> bool:
        return 2 * self.count > self.of

    @property
    def words(self) -> str:
        return f"{self.count} of {self.of}"


def reached_by(result: Result, reach_of: Callable[[Record], float | None]) -> list[float]:
    """How far each run carries, of those of which it is known."""
    return result.once(reach_of, lambda: [x for x in map(reach_of, result.runs) if x is not None])


def carried(result: Result, reach_of: Callable[[Record], float | None] = reach_of) -> list[Carried]:
    """At each measured length beyond the trained one, the shortest first; `reach_of` says how far one run carries."""
    reached = reached_by(result, reach_of)
    return [
        Carried.counted(length, factor, sum(x >= factor for x in reached), len(reached))
        for length, factor in result.lengths()
        if factor and factor > 1 and reached
    ]


def reaches(result: Result, reach_of: Callable[[Record], float | None] = reach_of) -> Spread | None:
    """The multiple of the trained length to which more than half of the seeds carry, and its interval; see reach_of."""
    return statistics.spread(reached_by(result, reach_of), middle=median_low)


def reach(result: Result) -> Carried | None:
    """The longest length to which more than half of all seeds carry, if that is past the trained one."""
    return next((at for at in reversed(carried(result)) if at.most), None)


@dataclass(frozen=True)
class Headline:
    """What one encoding does on one task, in few numbers.

    seeds, learned   how many runs, and how many of them learned; the other numbers say how they count the rest
    cpu_seconds, steps   to 99 %, over the runs that learned; None for text, and where none did
    reach            the multiple of the trained length to which more than half of all seeds carry; a run that carries
                     no further is 1, one that has not learned 0. None for text, and without longer lengths
    """

    task: str
    label: str
    seeds: int
    learned: int
    cpu_seconds: Spread | None
    steps: Spread | None
    reach: Spread | None


def headline(records: Sequence[Record]) -> list[Headline]:
    """Learning speed and reach of each encoding on each task, in order of appearance."""
    return [
        Headline(
            task=result.task,
            label=result.label,
            seeds=len(result.runs),
            learned=len(result.learned),
            cpu_seconds=result.spread("cpu_s_to_learned"),
            steps=result.spread("steps_to_learned"),
            reach=reaches(result),
        )
        for result in results(records)
    ]
