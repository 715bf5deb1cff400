"""Coverage of intervals, error rate and power of tests, checked by hand and by simulation."""

import math
import subprocess
import sys
from itertools import combinations, product
from statistics import median_low

import numpy as np
import pytest
from scipy import stats

from posenc.lab.results import statistics
from posenc.lab.results.statistics import Comparison, Difference, Estimate, compare


def holds(count: int, out: int) -> float:
    """Return the coverage of the interval without the `out` smallest and largest values, by enumeration."""
    ways = [sum(way) for way in product((0, 1), repeat=count)]
    return sum(out < count_below < count - out for count_below in ways) / len(ways)


@pytest.mark.parametrize("count", range(1, 14))
def test_the_interval_of_a_median_is_the_narrowest_by_ranks_that_holds_it_in_95_of_100_cases(count):
    out, coverage = statistics.rank_interval(count)
    assert coverage == holds(count, out)
    if count >= statistics.MIN_SEEDS_FOR_95:
        assert holds(count, out) >= 0.95 > holds(count, out + 1)
    else:
        assert out == 0 and holds(count, 0) < 0.95


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], (3.0, 3.0, 3.0, 1)),
        ([3.0, 1.0], (2.0, 2.0, 2.0, 2)),
        ([9.0, 1.0, 2.0], (2.0, 1.0, 9.0, 3)),
        ([9.0, 1.0, 2.0, 4.0], (3.0, 1.0, 9.0, 4)),
        ([1.0, math.inf, 2.0], (2.0, 1.0, math.inf, 3)),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], (5, 2, 8, 9)),
        ([], None),
    ],
)
def test_a_spread_is_the_median_with_its_interval_and_one_or_two_seeds_have_none(values, expected):
    assert statistics.estimate(values) == (None if expected is None else Estimate(*expected))


@pytest.mark.parametrize("count", [6, 9, 20])
def test_from_six_seeds_on_the_interval_is_the_one_of_the_quantile_test(count):
    values = np.random.default_rng(count).normal(size=count).tolist()
    oracle = stats.quantile_test(values, p=0.5).confidence_interval(0.95)
    interval = statistics.estimate(values)
    assert (interval.low, interval.high) == (oracle.low, oracle.high)


def test_a_middle_that_is_one_of_the_values_can_be_asked_for():
    assert statistics.estimate([1, 2, 4, 8], middle=median_low) == Estimate(2, 1, 8, 4)


@pytest.mark.parametrize(("right", "trials"), [(0, 512), (512, 512), (460, 512), (3, 5), (1, 64)])
def test_the_interval_of_a_share_is_wilsons(right, trials):
    oracle = stats.binomtest(right, trials).proportion_ci(0.95, method="wilson")
    assert statistics.share_interval(right / trials, trials) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_an_interval_is_never_narrower_than_the_error_within_one_run():
    alike = statistics.estimate([1.0] * 8, sequences=512)
    assert alike == Estimate(1.0, statistics.share_interval(1.0, 512)[0], 1.0, 8) and alike.low < 0.993
    # If the seeds differ by more, the interval is theirs.
    assert statistics.estimate([0.2, 0.5, 0.9], sequences=512) == Estimate(0.5, 0.2, 0.9, 3)
    # Two seeds have no interval, with or without sequences.
    assert statistics.estimate([1.0, 1.0], sequences=512) == Estimate(1.0, 1.0, 1.0, 2)


def test_the_variance_of_a_share_is_that_of_draws_and_never_0():
    samples = np.random.default_rng(0).binomial(512, 0.3, 20_000) / 512
    assert statistics.share_variance(0.3, 512) == pytest.approx(samples.var(), rel=0.05)
    assert statistics.share_variance(0.0, 512) == pytest.approx(statistics.share_variance(1.0, 512)) != 0


def seeds(*values: float) -> dict:
    return dict(enumerate(values))


def test_two_are_compared_by_the_paired_t_test():
    first, second = (1.0, 2.0, 4.0, 4.5), (0.5, 1.8, 3.1, 4.1)
    (pair,) = compare({"a": seeds(*first), "b": seeds(*second)}).differences
    assert pair.p == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert (pair.first, pair.second, pair.seeds) == ("a", "b", 4) and pair.mean == pytest.approx(0.5)


def test_a_pair_needs_both_its_own_spread_and_that_of_all_pairs():
    # By its own deviation a is ahead of b, but c varies so much that three seeds cannot tell.
    scores = {"a": seeds(1.0, 1.0, 1.01), "b": seeds(0.0, 0.0, 0.0), "c": seeds(0.0, 1.5, 0.2)}
    alone, in_family = (compare({k: scores[k] for k in names}).differences[0].p for names in ("ab", "abc"))
    assert alone < 0.001 < 0.05 < in_family < 1
    differences = [
        [x - y for x, y in zip(scores[i].values(), scores[j].values(), strict=True)] for i, j in ("ab", "ac", "bc")
    ]
    deviation = math.sqrt(np.mean([np.var(d, ddof=1) for d in differences]))
    by_hand = 2 * stats.t.sf(np.mean(differences[0]) / (deviation / math.sqrt(3)), 2 / 3 * 6)
    assert in_family == pytest.approx(3 * by_hand)


def test_a_pair_is_compared_on_the_seeds_that_both_have_and_on_no_fewer_than_three():
    full = {0: 1.0, 1: 2.0, 2: 4.0, 3: 9.0}
    second = {7: 5.0, 2: 3.1, 0: 0.5, 1: 1.8}
    (pair,) = compare({"a": full, "b": second}).differences
    assert pair.seeds == 3 and pair.p == pytest.approx(stats.ttest_rel([1.0, 2.0, 4.0], [0.5, 1.8, 3.1]).pvalue)
    del second[0]
    too_few = compare({"a": full, "b": second})
    assert too_few.differences == () and too_few.detectable_difference is None and too_few.winners() == []


def holm_by_closure(values: list[float]) -> list[float]:
    """Holm's correction by its definition: the largest Bonferroni p of all families with the hypothesis."""
    places = range(len(values))
    families = [set(f) for size in range(1, len(values) + 1) for f in combinations(places, size)]
    return [min(1.0, max(len(f) * min(values[i] for i in f) for f in families if place in f)) for place in places]


@pytest.mark.parametrize("values", [[0.01, 0.04, 0.03], [0.2], [0.5, 0.001, 0.02, 0.02, 0.9], [0.0, 0.6, 0.6]])
def test_p_values_are_corrected_as_by_all_families_that_they_belong_to(values):
    assert [p for p, _ in statistics.holm(values)] == pytest.approx(holm_by_closure(values))


def shares(*values: float, sequences: int = 512) -> tuple[dict, dict]:
    return seeds(*values), seeds(*(statistics.share_variance(x, sequences) for x in values))


def compare_shares(sequences: int = 512, **scores: tuple) -> Comparison:
    families = {name: shares(*values, sequences=sequences) for name, values in scores.items()}
    return compare({name: x for name, (x, _) in families.items()}, {name: v for name, (_, v) in families.items()})


def test_all_right_against_all_wrong_on_every_seed_is_a_difference_and_two_equal_runs_are_none():
    comparison = compare_shares(a=(1.0, 1.0, 1.0), b=(0.0, 0.0, 0.0), c=(0.0, 0.0, 0.0))
    assert comparison.beaten_by("a") == ["b", "c"] and comparison.winners() == ["a"]
    assert comparison.beaten_by("b") == comparison.beaten_by("c") == [] and comparison.differences[2].p == 1
    exact = compare({"a": seeds(2, 2, 2), "b": seeds(1, 1, 1), "c": seeds(1, 1, 1)})
    assert [d.p for d in exact.differences] == [0, 0, 1] and exact.winners() == ["a"]


def test_a_difference_within_the_error_of_the_held_out_sequences_is_none():
    scores = {"a": (0.99,) * 5, "b": (0.985,) * 5}
    assert compare_shares(512, **scores).winners() == []
    assert compare_shares(512_000, **scores).winners() == ["a"]
    # By hand: all seeds answer the same sequences, so more seeds do not make that error smaller.
    error = math.sqrt(statistics.share_variance(0.99, 512) + statistics.share_variance(0.985, 512))
    by_hand = pytest.approx(2 * stats.t.sf(0.005 / error, 4))
    assert compare_shares(512, **scores).differences[0].p == by_hand
    # Holm leaves the largest of three unchanged, and a third encoding adds no degrees of freedom.
    assert compare_shares(512, **scores, c=(0.5,) * 5).differences[0].p == by_hand


def test_a_difference_that_is_not_worth_a_claim_is_not_claimed():
    scores = {"a": seeds(1.0, 1.1, 1.2), "b": seeds(0.9, 1.0, 1.1)}
    assert compare(scores).winners() == ["a"]
    assert compare(scores, min_difference=0.11).winners() == []
    assert compare(scores, min_difference=0.11).detectable_difference >= 0.11


def test_ahead_are_those_of_which_each_is_above_all_the_others():
    def family(*significant_pairs: str) -> Comparison:
        significant = [Difference(first, second, 1.0, 3, 0.01) for first, second in significant_pairs]
        rest = [Difference(*x, 1.0, 3, 0.06) for x in combinations("abc", 2) if "".join(x) not in significant_pairs]
        return Comparison(("a", "b", "c"), (*significant, *rest), 0.1)

    assert family("ab", "ac").winners() == ["a"] and family("ac", "bc").winners() == ["a", "b"]
    # b does not differ significantly from a or c, so no name is ahead of all others.
    ac = family("ac")
    assert ac.winners() == [] and ac.leaders() == ["a", "b"] and ac.beaten_by("a") == ["c"]
    assert family().winners() == [] and family().leaders() == ["a", "b", "c"]
    assert Comparison(("a", "b"), (Difference("a", "b", -1.0, 3, 0.01),), 0.1).winners() == ["b"]


def two_humps(chance, size):
    """Draw bimodal exact matches, as beyond the trained length: most seeds nearly right or nearly wrong."""
    right = np.where(chance.random(size) < 0.5, chance.beta(30, 1, size), chance.beta(1, 30, size))
    return chance.binomial(512, right) / 512


NULLS = {
    "two humps": two_humps,
    "all or nothing": lambda chance, size: (chance.random(size) < 0.5).astype(float),
    "one hump": lambda chance, size: np.clip(chance.normal(0.5, 0.1, size), 0, 1),
}


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("count", [3, 5])
def test_where_nothing_differs_at_most_5_of_100_families_claim_a_difference(null, count):
    chance, claims = np.random.default_rng(count), 0
    for _ in range(200):
        rows = NULLS[null](chance, (7, count)).tolist()
        claims += any(
            d.p < statistics.LEVEL for d in compare_shares(**{f"e{i}": row for i, row in enumerate(rows)}).differences
        )
    assert claims / 200 <= 0.05


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("pairs", [1, 21])
def test_what_would_be_seen_is_found_in_80_of_100_simulations(count, pairs):
    level = 0.05 / pairs
    x = statistics.detectable_effect(count - 1, level)
    samples = np.random.default_rng(pairs).normal(x / math.sqrt(count), 1, (40_000, count))
    t = samples.mean(1) / (samples.std(1, ddof=1) / math.sqrt(count))
    assert np.mean(np.abs(t) > stats.t.isf(level / 2, count - 1)) == pytest.approx(0.80, abs=0.01)


def test_a_difference_as_large_as_is_said_to_be_seen_is_claimed_in_about_80_of_100_families():
    chance, claims = np.random.default_rng(1), 0
    # The effect at the true deviation: sqrt(2) sigma for the difference of two, three pairs.
    effect = math.sqrt(2) / math.sqrt(5) * statistics.detectable_effect(4, 0.05 / 3)
    for _ in range(300):
        rows = chance.normal([[effect], [0.0], [0.0]], 1, (3, 5)).tolist()
        claims += "b" in compare({name: seeds(*row) for name, row in zip("abc", rows, strict=True)}).beaten_by("a")
    assert 0.74 <= claims / 300 <= 0.90


def test_what_goes_unseen_comes_from_the_pooled_spread_at_the_corrected_level():
    rows = {"a": (1.0, 2.0, 4.0, 4.5), "b": (0.5, 1.8, 3.1, 4.1), "c": (0.1, 2.2, 3.0, 4.4)}
    comparison = compare({name: seeds(*row) for name, row in rows.items()})
    variances = [np.var(np.subtract(rows[i], rows[j]), ddof=1) for i, j in ("ab", "ac", "bc")]
    by_hand = math.sqrt(np.mean(variances) / 4) * statistics.detectable_effect(3, 0.05 / 3)
    assert comparison.detectable_difference == pytest.approx(by_hand)


def test_one_that_is_always_right_is_found_ahead_of_six_that_fall_apart():
    chance = np.random.default_rng(2)
    scores = {f"e{i}": (chance.binomial(512, chance.beta(2, 30, 5)) / 512).tolist() for i in range(6)}
    comparison = compare_shares(**scores, cheat=[1.0] * 5)
    assert comparison.winners() == ["cheat"] and len(comparison.beaten_by("cheat")) == 6


@pytest.mark.slow
def test_the_processes_of_a_sweep_load_no_scipy():
    script = "import sys, posenc.lab.sweeps.sweep, posenc.cli.terminal; print('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
