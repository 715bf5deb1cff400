"""Statistics over seeds: confidence intervals, paired comparisons, and the smallest difference that they can detect.

Functions take and return numbers, never records or text. SciPy is imported inside the functions that test, because
every process of a sweep imports this module and tests nothing.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, combinations

LEVEL = 0.05
"""The family-wise error rate: how often a family of comparisons may claim a difference where there is none."""

POWER = 0.80
"""How often a test must find a difference for it to count as detectable."""

MIN_SEEDS = 3
"""The fewest seeds for an interval or a claim."""

MIN_SEEDS_FOR_95 = 6
"""The fewest seeds for which the interval of a median has 95 % coverage, for any distribution."""

Scores = Mapping[str, Mapping[Hashable, float]]
"""name -> seed -> number"""


@dataclass(frozen=True)
class Estimate:
    """A median over seeds, with the confidence interval of the median of all seeds.

    low, high   the ends of the interval; with fewer than three seeds, the median itself
    count       the number of seeds
    """

    median: float
    low: float
    high: float
    count: int


@lru_cache
def rank_interval(count: int) -> tuple[int, float]:
    """Return how many values a median's 95 % interval leaves out at either end, and its coverage.

    k is the largest with P(Binomial(count, 1/2) <= k) <= 2.5 %, or 0; the coverage, 1 - 2 P(Binomial(count, 1/2) <= k)

    >>> [rank_interval(count) for count in (3, 5, 6, 9)]
    [(0, 0.75), (0, 0.9375), (0, 0.96875), (1, 0.9609375)]
    """
    tail_sums = list(accumulate(math.comb(count, k) for k in range(count)))
    k = max(sum(round(2 / LEVEL) * ways <= 2**count for ways in tail_sums) - 1, 0)
    return k, 1 - 2 * tail_sums[k] / 2**count


def estimate(
    values: Iterable[float],
    *,
    sequences: int | None = None,
    middle: Callable[[Sequence[float]], float] = statistics.median,
) -> Estimate | None:
    """Return the median with its 95 % interval by ranks: the k-th smallest to the k-th largest value.

    Each value lies above the true median with probability 1/2, whatever the distribution, also if it is bimodal. So the
    interval has at least 95 % coverage from 6 seeds on. For 3, 4 and 5 seeds it is the whole range, with a coverage of
    75, 88 and 94 %. One or two seeds have no interval. (A bootstrap of the median gives the same ends for 3 to 5 seeds,
    and has a coverage of 88 % for 7.)

    sequences   the values are shares of so many held-out sequences: the interval is never narrower than the error of
                that share within one run. All seeds answer the same sequences, so more seeds do not make it smaller
    middle      how the median is taken: statistics.median_low gives one of the values

    None without values.

    >>> estimate([0.9, 0.2, 0.4])
    Estimate(median=0.4, low=0.2, high=0.9, count=3)
    """
    sorted_values = sorted(values)
    if not sorted_values:
        return None
    center = middle(sorted_values)
    if len(sorted_values) < MIN_SEEDS:
        return Estimate(center, center, center, len(sorted_values))
    rank, _ = rank_interval(len(sorted_values))
    low, high = sorted_values[rank], sorted_values[-1 - rank]
    if sequences is not None:
        lowest, highest = share_interval(center, sequences)
        low, high = min(low, lowest), max(high, highest)
    return Estimate(center, low, high, len(sorted_values))


def share_interval(share: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of `trials` trials.

    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),  z = 1.96

    >>> [round(x, 3) for x in share_interval(1.0, 512)]
    [0.993, 1.0]

    Source: Wilson 1927, doi:10.1080/01621459.1927.10502953.
    """
    z = statistics.NormalDist().inv_cdf(1 - LEVEL / 2)
    middle = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    low, high = ((middle + side * reach) / (1 + z * z / trials) for side in (-1, 1))
    return max(low, 0.0), min(high, 1.0)


def share_variance(share: float, trials: int) -> float:
    """Return the variance of a share of `trials` trials. It is above 0 for shares of 0 and 1 too.

    p (1 - p) / (n + 4), p = (n share + 2) / (n + 4)

    Source: Agresti and Coull 1998, doi:10.1080/00031305.1998.10480550.
    """
    p = (share * trials + 2) / (trials + 4)
    return p * (1 - p) / (trials + 4)


@dataclass(frozen=True)
class Difference:
    """The difference between two names over their common seeds.

    mean    first minus second
    seeds   the number of common seeds
    p       corrected for the whole family; a difference with p below LEVEL is significant
    level   the level that `holm` compared the uncorrected p with
    standard_errors  (standard error, degrees of freedom) of the mean, by each of the two ways of `compare`
    """

    first: str
    second: str
    mean: float
    seeds: int
    p: float
    level: float = LEVEL
    standard_errors: tuple[tuple[float, float], ...] = ()

    @property
    def half_width(self) -> float:
        """Half the width of the mean's interval, which excludes 0 if and only if the difference is significant."""
        from scipy import special

        tail = 1 - self.level / 2
        return max(float(error * special.stdtrit(freedom, tail)) for error, freedom in self.standard_errors)


@dataclass(frozen=True)
class Comparison:
    """The differences of all pairs of a family.

    differences   one for each pair with at least three common seeds
    error         the largest standard error of a mean difference, pooled and within runs; None without a pair
    """

    names: tuple[str, ...]
    differences: tuple[Difference, ...]
    error: float | None
    min_difference: float = 0.0

    @property
    def detectable_difference(self) -> float | None:
        """The smallest difference with 80 % power; None without a pair."""
        if self.error is None:
            return None
        fewest, level = min(d.seeds for d in self.differences), LEVEL / len(self.differences)
        return max(self.min_difference, self.error * detectable_effect(fewest - 1, level))

    def beaten_by(self, winner: str) -> list[str]:
        """Return the names that a name is significantly above, in order."""
        losers = {d.second for d in self.differences if d.first == winner and d.mean > 0 and self.is_significant(d)}
        losers |= {d.first for d in self.differences if d.second == winner and d.mean < 0 and self.is_significant(d)}
        return [name for name in self.names if name in losers]

    def is_significant(self, difference: Difference) -> bool:
        return difference.p < LEVEL and abs(difference.mean) > self.min_difference

    def leaders(self) -> list[str]:
        """Return the names that no other name is above."""
        beaten = {name for winner in self.names for name in self.beaten_by(winner)}
        return [name for name in self.names if name not in beaten]

    def winners(self) -> list[str]:
        """Return the leaders if each of them is above every other name; else none."""
        top = self.leaders()
        rest = {name for name in self.names if name not in top}
        return top if rest and all(rest <= set(self.beaten_by(leader)) for leader in top) else []


def compare(scores: Scores, variances: Scores | None = None, min_difference: float = 0.0) -> Comparison:
    """Compare all pairs by t tests paired by seed, with Holm's correction; higher scores are better.

    t = mean(d) / max(sd(d) / sqrt(n), sqrt(mean(v))),  d_s = first_s - second_s over the n common seeds s

    The test is made twice: with the deviation sd(d) of the pair (n - 1 degrees of freedom), and with that pooled over
    all pairs (2/k sum(n - 1) for k names). The larger p counts. Three to five seeds of a bimodal score may agree by
    chance and then have no deviation; the pooled one says how often that happens. (Of families of seven names that
    are 0 or 1 at random, with 3 seeds, 26 in 100 claim something by the first test alone, and 1 in 100 by both.)

    variances       of each number within its run: v_s is the sum of the two runs'
    min_difference  differences up to this are never significant

    Pairs with fewer than three common seeds are not compared. Holm's step-down keeps the family-wise error rate at 5 %.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    names = tuple(scores)
    pairs: list[tuple[str, str, list[float], float]] = []
    for first, second in combinations(names, 2):
        seeds = [seed for seed in scores[first] if seed in scores[second]]
        if len(seeds) < MIN_SEEDS:
            continue
        run_variances = [variances[first][seed] + variances[second][seed] for seed in seeds] if variances else [0.0]
        differences = [scores[first][seed] - scores[second][seed] for seed in seeds]
        pairs.append((first, second, differences, math.sqrt(statistics.fmean(run_variances))))
    if not pairs:
        return Comparison(names, (), None, min_difference)
    freedom = sum(len(differences) - 1 for _, _, differences, _ in pairs)
    squares = sum(variance(differences) * (len(differences) - 1) for _, _, differences, _ in pairs)
    deviation, names_in_pairs = math.sqrt(squares / freedom), {name for pair in pairs for name in pair[:2]}
    values, standard_errors = [], []
    for _, _, differences, error in pairs:
        n = len(differences)
        separate = max(math.sqrt(variance(differences) / n), error), n - 1
        pooled = max(deviation / math.sqrt(n), error), 2 / len(names_in_pairs) * freedom
        mean = statistics.fmean(differences)
        values.append(max(p_value(mean, *separate), p_value(mean, *pooled)))
        standard_errors.append((separate, pooled))
    error = max(max(deviation / math.sqrt(len(differences)), error) for _, _, differences, error in pairs)
    family = tuple(
        Difference(first, second, statistics.fmean(differences), len(differences), *result, errors)
        for (first, second, differences, _), result, errors in zip(pairs, holm(values), standard_errors, strict=True)
    )
    return Comparison(names, family, error, min_difference)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance (n - 1), exactly 0 for equal numbers; statistics.variance is slow, with fractions.

    >>> variance([1.0, 2.0, 4.0])
    2.33
    """
    offsets = [value - values[0] for value in values]
    mean = statistics.fmean(offsets)
    return math.fsum((value - mean) ** 2 for value in offsets) / (len(offsets) - 1)


def p_value(mean: float, error: float, freedom: float) -> float:
    """Return the two-sided p of Student's t; without any error, 0 for a difference and 1 for none."""
    from scipy import special

    if error == 0:
        return float(mean == 0)
    return float(2 * special.stdtr(freedom, -abs(mean) / error))


def holm(values: Sequence[float]) -> list[tuple[float, float]]:
    """Correct p-values by Holm's step-down; return each with the level that it was compared with.

    p'_(i) = max over j <= i of min(1, (m - j + 1) p_(j)),  p_(1) <= ... <= p_(m)

    The level of a value is LEVEL / (m - i + 1); from the first value that is not below its level, that level stays.

    >>> holm([0.01, 0.04, 0.03])
    [(0.03, 0.017), (0.06, 0.025), (0.06, 0.025)]
    """
    results, last, level = [(0.0, LEVEL)] * len(values), 0.0, 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        level = LEVEL / (len(values) - rank) if last < LEVEL else level
        last = max(last, min(1.0, (len(values) - rank) * values[index]))
        results[index] = last, level
    return results


@lru_cache
def detectable_effect(freedom: float, level: float) -> float:
    """Return the difference (standard errors) that a two-sided t test at `level` finds with 80 % power.

    x with P(|T| > t) = 80 %, T = (Z + x) / sqrt(V / f) noncentral t around x, t the critical value

    >>> round(detectable_effect(1_000_000, 0.05), 2)  # of a normal: 1.96 + 0.84
    2.8
    """
    import numpy as np
    from scipy import optimize, special, stats

    # The mean over V by its definition: SciPy's noncentral t is NaN for the large x that few seeds need.
    v = stats.chi2.ppf((np.arange(2_000) + 0.5) / 2_000, freedom)
    critical = stats.t.isf(level / 2, freedom) * np.sqrt(v / freedom)

    def power_gap(x: float) -> float:
        return float(np.mean(special.ndtr(x - critical) + special.ndtr(-x - critical))) - POWER

    upper = float(critical.max()) + 3.0
    return float(optimize.brentq(power_gap, 0.0, upper))
