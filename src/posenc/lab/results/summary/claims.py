"""Compare encodings: which is significantly ahead of which, and to which length each carries.

Runs are paired by seed, because they share their data and initial weights, and only if both learned: one that did not
says nothing about lengths and speed. It counts as a failure among the seeds that carry to a length.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median_low

from posenc.lab.results import statistics
from posenc.lab.results.statistics import Comparison, Estimate
from posenc.lab.results.summary.formatting import bits, join_words, label_list, percent, times
from posenc.lab.results.summary.runs import Record, Result, entries, get, number, results, sequence_count

# The exact match at a length from which an encoding carries to it.
CARRY_THRESHOLD = 0.90
# Of R(k), the perplexity at k times the trained length over that at the trained length.
FLAT_RATIO = 1.05
EXPLODING_RATIO = 1.5
# Smaller differences of means are not claimed; CPU time of one run varies by about as much.
SAME_TIME_RATIO = 1.10
SAME_BITS = 0.01


@dataclass(frozen=True)
class Measure:
    """A number of a run by which encodings are compared.

    value_of   returns the number of one run; None if it was not measured
    form       formats a difference without its unit
    higher     whether more is better
    ratio      whether differences are ratios
    min_difference   differences up to this are not claimed (of a ratio: its logarithm)
    variance   of the number within its run
    unit       after a difference
    """

    name: str
    value_of: Callable[[Record], float | None]
    form: Callable[[float], str]
    higher: bool = True
    ratio: bool = False
    min_difference: float = 0.0
    variance: Callable[[Record], float] | None = None
    unit: str = ""

    def format_signed(self, difference: float) -> str:
        """Format a difference of scores in the measure's direction: first minus second, or first over second."""
        value = difference if self.higher else -difference
        return self.form(value) if self.ratio else f"{'-' if value < 0 else '+'}{self.form(abs(value))}"

    def score(self, run: Record) -> float | None:
        """Return a run's number, negated if lower is better, and as a logarithm if differences are ratios."""
        value = self.value_of(run)
        if value is None or not math.isfinite(value) or (self.ratio and value <= 0):
            return None
        value = math.log(value) if self.ratio else value
        return value if self.higher else -value


def entry_at(run: Record, factor: float) -> dict[str, object]:
    return next((entry for entry in entries(run) if number(get(entry, "factor")) == factor), {})


@lru_cache
def exact_match_at(factor: float) -> Measure:
    def value_of(run: Record) -> float | None:
        return number(get(entry_at(run, factor), "exact_match"))

    def variance(run: Record) -> float:
        return statistics.share_variance(value_of(run) or 0.0, sequence_count([entry_at(run, factor)]))

    return Measure(f"exact match at {times(factor)}", value_of, percent, variance=variance, unit=" points")


@lru_cache
def growth_at(factor: float) -> Measure:
    """Return the measure R(k)."""
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
    min_difference=math.log(SAME_TIME_RATIO),
)
BITS = Measure(
    "bits per byte",
    lambda run: number(get(run, "in_distribution", "bits_per_byte")),
    bits,
    higher=False,
    min_difference=SAME_BITS,
)


@lru_cache
def bits_at(factor: float) -> Measure:
    """Return the measure of bits per byte in windows of a multiple of the trained length."""
    name = f"bits per byte at {times(factor)}"
    return replace(BITS, name=name, value_of=lambda run: number(get(entry_at(run, factor), "bits_per_byte")))


def run_reach_by(run: Record, measure: str, passes: Callable[[float], bool]) -> float | None:
    """Return the multiple of the trained length up to which each tested length of a run passes.

    1 if no longer length passes, 0 if the run has not learned; None if no longer length was measured.
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
    reach = 1.0
    for factor, score in scores:
        if not passes(score):
            break
        reach = factor
    return reach


def run_reach(run: Record) -> float | None:
    """Return a run's reach by exact match, as a multiple of the trained length, see `run_reach_by`."""
    return run_reach_by(run, "exact_match", lambda score: score >= CARRY_THRESHOLD)


REACH = Measure("reach", run_reach, times)


def compare_encodings(results: Sequence[Result], measure: Measure) -> Comparison:
    """Compare all pairs of encodings of one task in one measure, on the seeds with which both learned."""
    compute = partial(compute_comparison, results, measure)
    return results[0].memoise((measure, *results), compute) if results else compute()


def compute_comparison(results: Sequence[Result], measure: Measure) -> Comparison:
    scores: dict[str, dict[object, float]] = {}
    variances: dict[str, dict[object, float]] = {}
    for result in results:
        for run in result.learned:
            seed, score = get(run, "experiment", "seed"), measure.score(run)
            if seed is not None and score is not None:
                scores.setdefault(result.label, {})[seed] = score
                if measure.variance:
                    variances.setdefault(result.label, {})[seed] = measure.variance(run)
    return statistics.compare(scores, variances or None, measure.min_difference)


def task_measures(learners: Sequence[Result]) -> list[Measure]:
    """Return a task's measures: reach and speed, or for text bits per byte by length, then R(k)."""
    if any(result.is_text for result in learners):
        factors = sorted({factor for r in learners for _, factor, _ in r.extrapolation("perplexity_ratio") if factor})
        return [BITS, *map(bits_at, factors), *map(growth_at, factors[-1:])]
    last = max((factor for result in learners for _, factor, _ in result.extrapolation("exact_match")), default=None)
    return [*([REACH, exact_match_at(last)] if last else []), CPU_SECONDS]


def winning_results(results: Sequence[Result], measure: Measure) -> list[Result]:
    """Return the results that are significantly ahead of all others; often none."""
    winners = compare_encodings(results, measure).winners()
    return [result for result in results if result.label in winners]


def order_sentence(results: Sequence[Result], measure: Measure) -> str:
    """Return a sentence on which encodings are ahead of which; empty with too few seeds to compare."""
    comparison = compare_encodings(results, measure)
    if not comparison.differences:
        return ""
    if winners := comparison.winners():
        verb = "is" if len(winners) == 1 else "are"
        return f"In {measure.name}, {label_list(winners)} {verb} ahead of all others."
    leads = {label: beaten for label in comparison.leaders() if (beaten := comparison.beaten_by(label))}
    if not leads:
        return f"In {measure.name}, no difference is significant."
    clauses = [f"`{label}` is ahead of {label_list(beaten)}" for label, beaten in leads.items()]
    return f"In {measure.name}, {'; '.join(clauses)}."


def power_sentence(results: Sequence[Result], measures: Sequence[Measure]) -> str:
    """Return a sentence on the smallest differences that these seeds can detect."""
    parts, seeds = [], []
    for measure in measures:
        comparison = compare_encodings(results, measure)
        if not comparison.detectable_difference:
            continue
        seeds += [difference.seeds for difference in comparison.differences]
        any_at_all = measure.variance is not None and comparison.detectable_difference >= 1
        amount = "any" if any_at_all else f"below {measure.form(comparison.detectable_difference)}{measure.unit}"
        parts.append(f"{amount} in {measure.name}")
    if not parts:
        return ""
    fewest = "" if min(seeds) == max(seeds) else ", the fewest of a pair,"
    return f"With {min(seeds)} seeds{fewest} these differences would go unseen: {join_words(parts)}."


@dataclass(frozen=True)
class SeedShare:
    """The seeds that carry to a length: they learned, and pass there and at all shorter lengths.

    length, factor   the length, and the multiple of the trained one
    count, seeds     the seeds that carry, and all seeds, also those that did not learn
    low, high        the 95 % interval of that share
    """

    length: float
    factor: float
    count: int
    seeds: int
    low: float
    high: float

    @classmethod
    def from_counts(cls, length: float, factor: float, count: int, seeds: int) -> "SeedShare":
        return cls(length, factor, count, seeds, *statistics.share_interval(count / seeds, seeds))

    @property
    def is_majority(self) -> bool:
        return 2 * self.count > self.seeds

    @property
    def text(self) -> str:
        return f"{self.count} of {self.seeds}"


def run_reaches(result: Result, reach: Callable[[Record], float | None]) -> list[float]:
    """Return the reach of each run that has one."""
    return result.memoise(reach, lambda: [x for x in map(reach, result.runs) if x is not None])


def seed_shares(result: Result, reach: Callable[[Record], float | None] = run_reach) -> list[SeedShare]:
    """Return the share of seeds at each length beyond the trained one, shortest first. `reach` is that of one run."""
    reaches = run_reaches(result, reach)
    return [
        SeedShare.from_counts(length, factor, sum(x >= factor for x in reaches), len(reaches))
        for length, factor in result.lengths()
        if factor and factor > 1 and reaches
    ]


def reach_estimate(result: Result, reach: Callable[[Record], float | None] = run_reach) -> Estimate | None:
    """Return the multiple of the trained length to which most seeds carry, with its interval."""
    return statistics.estimate(run_reaches(result, reach), middle=median_low)


def longest_reach(result: Result) -> SeedShare | None:
    """Return the longest length beyond the trained one to which more than half of all seeds carry."""
    return next((share for share in reversed(seed_shares(result)) if share.is_majority), None)


@dataclass(frozen=True)
class Headline:
    """The learning speed and reach of one encoding on one task.

    seeds, learned   the number of runs, and of those that learned
    cpu_seconds, steps   to 99 %, over the runs that learned; None for text, and if none learned
    reach            the multiple of the trained length to which more than half of all seeds carry; a run that carries
                     no further is 1, one that has not learned 0. None for text, and without longer lengths
    """

    task: str
    label: str
    seeds: int
    learned: int
    cpu_seconds: Estimate | None
    steps: Estimate | None
    reach: Estimate | None


def headline(records: Sequence[Record]) -> list[Headline]:
    """Return learning speed and reach of each encoding on each task, in order of appearance."""
    return [
        Headline(
            task=result.task,
            label=result.label,
            seeds=len(result.runs),
            learned=len(result.learned),
            cpu_seconds=result.estimate("cpu_s_to_learned"),
            steps=result.estimate("steps_to_learned"),
            reach=reach_estimate(result),
        )
        for result in results(records)
    ]
