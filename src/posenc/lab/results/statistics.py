"""What a few seeds say about all seeds: intervals, differences between pairs, and what would go unseen.

Numbers in, numbers out: nothing here knows a record, a task or a word. SciPy is imported where a claim is made, because
every process of a sweep reads the numbers and makes none.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, combinations

LEVEL = 0.05
"""The share of families of comparisons in which anything may be claimed where nothing is so."""

POWER = 0.80
"""How often a difference has to be found before it counts as one that would be seen."""

FEWEST = 3
"""Seeds below which there is no interval and no claim."""

FEWEST_FOR_95 = 6
"""Seeds from which the interval of a median holds it in 95 of 100 cases, whatever the numbers are like."""

Scores = Mapping[str, Mapping[Hashable, float]]
"""name -> seed -> number"""


@dataclass(frozen=True)
class Spread:
    """The median of a number over seeds, and the interval that holds the median of all seeds.

    low, high   the ends of the interval; the median itself where fewer than three seeds give none
    count       the seeds
    """

    median: float
    low: float
    high: float
    count: int


@lru_cache
def by_ranks(count: int) -> tuple[int, float]:
    """Of the 95 % interval of a median of `count` values: how many lie outside at either end, and its coverage.

    k, the largest with P(Binomial(count, 1/2) <= k) <= 2.5 %, or 0; and 1 - 2 P(Binomial(count, 1/2) <= k)

    >>> [by_ranks(count) for count in (3, 5, 6, 9)]
    [(0, 0.75), (0, 0.9375), (0, 0.96875), (1, 0.9609375)]
    """
    below = list(accumulate(math.comb(count, k) for k in range(count)))
    k = max(sum(round(2 / LEVEL) * ways <= 2**count for ways in below) - 1, 0)
    return k, 1 - 2 * below[k] / 2**count


def spread(
    values: Iterable[float],
    *,
    sequences: int | None = None,
    middle: Callable[[Sequence[float]], float] = statistics.median,
) -> Spread | None:
    """The median with its 95 % interval, by ranks: the k-th smallest to the k-th largest value.

    Each value of another seed lies above the true median with probability 1/2, whatever they are drawn from, two-humped
    scores included. So the interval holds it in at least 95 of 100 cases from 6 seeds on; of 3, 4 and 5 seeds it is the
    whole range, which holds it in 75, 88 and 94 of 100. One or two seeds have no interval. (A bootstrap of the median
    gives the same ends for 3 to 5 seeds, and holds the median in 88 of 100 cases for 7.)

    sequences   the values are shares of so many held-out sequences: the interval is never narrower than the error of
                that share within one run. All seeds answer the same sequences, so more seeds do not make it smaller
    middle      how the median is taken: statistics.median_low gives one of the values

    None for no values.

    >>> spread([0.9, 0.2, 0.4])
    Spread(median=0.4, low=0.2, high=0.9, count=3)
    """
    known = sorted(values)
    if not known:
        return None
    found = middle(known)
    if len(known) < FEWEST:
        return Spread(found, found, found, len(known))
    out, _ = by_ranks(len(known))
    low, high = known[out], known[-1 - out]
    if sequences is not None:
        lowest, highest = share_interval(found, sequences)
        low, high = min(low, lowest), max(high, highest)
    return Spread(found, low, high, len(known))


def share_interval(share: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many trials.

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
    """The variance of a share of so many trials, above 0 for shares of 0 and 1 too.

    p (1 - p) / (n + 4), p = (n share + 2) / (n + 4)

    Source: Agresti and Coull 1998, doi:10.1080/00031305.1998.10480550.
    """
    p = (share * trials + 2) / (trials + 4)
    return p * (1 - p) / (trials + 4)


@dataclass(frozen=True)
class Difference:
    """Two that were compared.

    mean     first minus second, over the seeds that both have
    seeds    how many these are
    p        corrected for the whole family: below the level, the difference is claimed
    judged   the level that `holm` compared the uncorrected p with
    spreads  (standard error, degrees of freedom) of the mean, by each of the two ways of `compare`
    """

    first: str
    second: str
    mean: float
    seeds: int
    p: float
    judged: float = LEVEL
    spreads: tuple[tuple[float, float], ...] = ()

    @property
    def half_width(self) -> float:
        """Of the interval of the mean: it leaves 0 out where the difference is claimed, and only there."""
        from scipy import special

        tail = 1 - self.judged / 2
        return max(float(error * special.stdtrit(freedom, tail)) for error, freedom in self.spreads)


@dataclass(frozen=True)
class Comparison:
    """All pairs of a family, and what its size and its spread leave unseen.

    differences   one for each pair with at least three common seeds
    error         the largest of a mean difference, by the pooled spread and within runs; None without a pair
    """

    names: tuple[str, ...]
    differences: tuple[Difference, ...]
    error: float | None
    least: float = 0.0

    @property
    def unseen(self) -> float | None:
        """A difference below this would be found in fewer than 80 of 100 cases; None without a pair."""
        if self.error is None:
            return None
        fewest, level = min(d.seeds for d in self.differences), LEVEL / len(self.differences)
        return max(self.least, self.error * standard_errors_to_see(fewest - 1, level))

    def above(self, one: str) -> list[str]:
        """Those that it is above, in order."""
        won = {d.second for d in self.differences if d.first == one and d.mean > 0 and self.claimed(d)}
        won |= {d.first for d in self.differences if d.second == one and d.mean < 0 and self.claimed(d)}
        return [name for name in self.names if name in won]

    def claimed(self, difference: Difference) -> bool:
        return difference.p < LEVEL and abs(difference.mean) > self.least

    def unbeaten(self) -> list[str]:
        """Those that nobody is above."""
        beaten = {name for one in self.names for name in self.above(one)}
        return [name for name in self.names if name not in beaten]

    def first(self) -> list[str]:
        """Those ahead of all others: nobody is above them, and each of them is above everybody else. Often nobody."""
        top = self.unbeaten()
        rest = {name for name in self.names if name not in top}
        return top if rest and all(rest <= set(self.above(one)) for one in top) else []


def compare(scores: Scores, variances: Scores | None = None, least: float = 0.0) -> Comparison:
    """Which of several differ, higher being better: paired by seed, corrected for all pairs.

    t = mean(d) / max(sd(d) / sqrt(n), sqrt(mean(v))),  d_s = one_s - other_s over the n common seeds s

    twice: with the spread sd(d) of the pair (n - 1 degrees of freedom), and with the spread pooled over all pairs
    (2/k sum(n - 1) for k names). The larger p counts. Three to five seeds of a score with two humps may agree by chance
    and then show no spread of their own; the others' spread says how often that happens. (Of families of seven
    names that are 0 or 1 at random, with 3 seeds, 26 in 100 claim something by the first alone, and 1 in 100 by both.)

    variances   of each number within its run: v_s is the sum of the two runs'
    least       differences up to this are too small to be worth a claim

    Pairs with fewer than three common seeds are not compared. p is corrected by Holm's step-down over all pairs that
    are, so that in at most 5 of 100 families any difference is claimed where there is none.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    names = tuple(scores)
    pairs: list[tuple[str, str, list[float], float]] = []
    for one, other in combinations(names, 2):
        seeds = [seed for seed in scores[one] if seed in scores[other]]
        if len(seeds) < FEWEST:
            continue
        within = [variances[one][seed] + variances[other][seed] for seed in seeds] if variances else [0.0]
        differences = [scores[one][seed] - scores[other][seed] for seed in seeds]
        pairs.append((one, other, differences, math.sqrt(statistics.fmean(within))))
    if not pairs:
        return Comparison(names, (), None, least)
    freedom = sum(len(differences) - 1 for _, _, differences, _ in pairs)
    squares = sum(variance(differences) * (len(differences) - 1) for _, _, differences, _ in pairs)
    pooled, compared = math.sqrt(squares / freedom), {name for one, other, _, _ in pairs for name in (one, other)}
    values, spreads = [], []
    for _, _, differences, error in pairs:
        n = len(differences)
        own = max(math.sqrt(variance(differences) / n), error), n - 1
        among = max(pooled / math.sqrt(n), error), 2 / len(compared) * freedom
        values.append(max(p_value(statistics.fmean(differences), *spread) for spread in (own, among)))
        spreads.append((own, among))
    error = max(max(pooled / math.sqrt(len(differences)), error) for _, _, differences, error in pairs)
    found = tuple(
        Difference(one, other, statistics.fmean(differences), len(differences), *corrected, both)
        for (one, other, differences, _), corrected, both in zip(pairs, holm(values), spreads, strict=True)
    )
    return Comparison(names, found, error, least)


def variance(values: Sequence[float]) -> float:
    """With n - 1 in the denominator; of equal numbers it is 0. Pairs are many, and the library's goes by fractions.

    >>> variance([1.0, 2.0, 4.0])
    2.33
    """
    moved = [value - values[0] for value in values]
    mean = statistics.fmean(moved)
    return math.fsum((value - mean) ** 2 for value in moved) / (len(moved) - 1)


def p_value(mean: float, error: float, freedom: float) -> float:
    """Two-sided, of Student's t; a difference without any error is certain, and none is none."""
    from scipy import special

    if error == 0:
        return float(mean == 0)
    return float(2 * special.stdtr(freedom, -abs(mean) / error))


def holm(values: Sequence[float]) -> list[tuple[float, float]]:
    """p-values corrected for their number, step by step from the smallest, and the level that each was judged by.

    p'_(i) = max over j <= i of min(1, (m - j + 1) p_(j)),  p_(1) <= ... <= p_(m)

    The level of a value is LEVEL / (m - i + 1), and from the first that is not below it on, the level of that one.

    >>> holm([0.01, 0.04, 0.03])
    [(0.03, 0.017), (0.06, 0.025), (0.06, 0.025)]
    """
    out, last, level = [(0.0, LEVEL)] * len(values), 0.0, 0.0
    for done, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        level = LEVEL / (len(values) - done) if last < LEVEL else level
        last = max(last, min(1.0, (len(values) - done) * values[place]))
        out[place] = last, level
    return out


@lru_cache
def standard_errors_to_see(freedom: float, level: float) -> float:
    """The difference, in standard errors, that a two-sided t test at this level finds in 80 of 100 cases.

    x with P(|T| > t) = 80 %, T = (Z + x) / sqrt(V / f) noncentral t around x, t the critical value

    >>> round(standard_errors_to_see(1_000_000, 0.05), 2)  # of a normal: 1.96 + 0.84
    2.8
    """
    import numpy as np
    from scipy import optimize, special, stats

    # By its definition, over V: scipy's own noncentral t is NaN for the large x that few seeds need.
    v = stats.chi2.ppf((np.arange(2_000) + 0.5) / 2_000, freedom)
    ends = stats.t.isf(level / 2, freedom) * np.sqrt(v / freedom)

    def missing(x: float) -> float:
        return float(np.mean(special.ndtr(x - ends) + special.ndtr(-x - ends))) - POWER

    most = float(ends.max()) + 3.0
    return float(optimize.brentq(missing, 0.0, most))
