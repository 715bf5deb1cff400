"""Intervals cover, tests claim no more than they may, and power is what it is called: by hand, and by simulation."""

import math
import subprocess
import sys
from itertools import combinations, product
from statistics import median_low

import numpy as np
import pytest
from scipy import stats

from posenc.lab.results import statistics
from posenc.lab.results.statistics import Comparison, Difference, Spread, compare


def holds(count: int, out: int) -> float:
    """How often all but the `out` smallest and largest values hold the median: over all ways to fall beside it."""
    ways = [sum(way) for way in product((0, 1), repeat=count)]
    return sum(out < below < count - out for below in ways) / len(ways)


@pytest.mark.parametrize("count", range(1, 14))
def test_the_interval_of_a_median_is_the_narrowest_by_ranks_that_holds_it_in_95_of_100_cases(count):
    out, coverage = statistics.by_ranks(count)
    assert coverage == holds(count, out)
    if count >= statistics.FEWEST_FOR_95:
        assert holds(count, out) >= 0.95 > holds(count, out + 1)
    else:
        assert out == 0 and holds(count, 0) < 0.95


@pytest.mark.parametrize(
    ("values", "found"),
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
def test_a_spread_is_the_median_with_its_interval_and_one_or_two_seeds_have_none(values, found):
    assert statistics.spread(values) == (None if found is None else Spread(*found))


@pytest.mark.parametrize("count", [6, 9, 20])
def test_from_six_seeds_on_the_interval_is_the_one_of_the_quantile_test(count):
    values = np.random.default_rng(count).normal(size=count).tolist()
    oracle = stats.quantile_test(values, p=0.5).confidence_interval(0.95)
    found = statistics.spread(values)
    assert (found.low, found.high) == (oracle.low, oracle.high)


def test_a_middle_that_is_one_of_the_values_can_be_asked_for():
    assert statistics.spread([1, 2, 4, 8], middle=median_low) == Spread(2, 1, 8, 4)


@pytest.mark.parametrize(("right", "of"), [(0, 512), (512, 512), (460, 512), (3, 5), (1, 64)])
def test_the_interval_of_a_share_is_wilsons(right, of):
    oracle = stats.binomtest(right, of).proportion_ci(0.95, method="wilson")
    assert statistics.share_interval(right / of, of) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_an_interval_is_never_narrower_than_the_error_within_one_run():
    alike = statistics.spread([1.0] * 8, sequences=512)
    assert alike == Spread(1.0, statistics.share_interval(1.0, 512)[0], 1.0, 8) and alike.low < 0.993
    # The seeds differ by more than that: then they have it.
    assert statistics.spread([0.2, 0.5, 0.9], sequences=512) == Spread(0.5, 0.2, 0.9, 3)
    # Two seeds have no interval, whatever each of them knows of itself.
    assert statistics.spread([1.0, 1.0], sequences=512) == Spread(1.0, 1.0, 1.0, 2)


def test_the_variance_of_a_share_is_that_of_draws_and_never_0():
    drawn = np.random.default_rng(0).binomial(512, 0.3, 20_000) / 512
    assert statistics.share_variance(0.3, 512) == pytest.approx(drawn.var(), rel=0.05)
    assert statistics.share_variance(0.0, 512) == pytest.approx(statistics.share_variance(1.0, 512)) != 0


def seeds(*values: float) -> dict:
    return dict(enumerate(values))


def test_two_are_compared_by_the_paired_t_test():
    one, other = (1.0, 2.0, 4.0, 4.5), (0.5, 1.8, 3.1, 4.1)
    (found,) = compare({"a": seeds(*one), "b": seeds(*other)}).differences
    assert found.p == pytest.approx(stats.ttest_rel(one, other).pvalue)
    assert (found.first, found.second, found.seeds) == ("a", "b", 4) and found.mean == pytest.approx(0.5)


def test_a_pair_needs_both_its_own_spread_and_that_of_all_pairs():
    # By its own spread a is ahead of b, and c is so restless that it shows how little three seeds say.
    scores = {"a": seeds(1.0, 1.0, 1.01), "b": seeds(0.0, 0.0, 0.0), "c": seeds(0.0, 1.5, 0.2)}
    alone, among = (compare({k: scores[k] for k in names}).differences[0].p for names in ("ab", "abc"))
    assert alone < 0.001 < 0.05 < among < 1
    differences = [
        [x - y for x, y in zip(scores[i].values(), scores[j].values(), strict=True)] for i, j in ("ab", "ac", "bc")
    ]
    pooled = math.sqrt(np.mean([np.var(d, ddof=1) for d in differences]))
    by_hand = 2 * stats.t.sf(np.mean(differences[0]) / (pooled / math.sqrt(3)), 2 / 3 * 6)
    assert among == pytest.approx(3 * by_hand)


def test_a_pair_is_compared_on_the_seeds_that_both_have_and_on_no_fewer_than_three():
    full = {0: 1.0, 1: 2.0, 2: 4.0, 3: 9.0}
    shuffled = {7: 5.0, 2: 3.1, 0: 0.5, 1: 1.8}
    (found,) = compare({"a": full, "b": shuffled}).differences
    assert found.seeds == 3 and found.p == pytest.approx(stats.ttest_rel([1.0, 2.0, 4.0], [0.5, 1.8, 3.1]).pvalue)
    del shuffled[0]
    nothing = compare({"a": full, "b": shuffled})
    assert nothing.differences == () and nothing.unseen is None and nothing.first() == []


def closed(values: list[float]) -> list[float]:
    """Holm's correction by its meaning: the worst of all families a hypothesis may belong to, each by Bonferroni."""
    places = range(len(values))
    families = [set(f) for size in range(1, len(values) + 1) for f in combinations(places, size)]
    return [min(1.0, max(len(f) * min(values[i] for i in f) for f in families if place in f)) for place in places]


@pytest.mark.parametrize("values", [[0.01, 0.04, 0.03], [0.2], [0.5, 0.001, 0.02, 0.02, 0.9], [0.0, 0.6, 0.6]])
def test_p_values_are_corrected_as_by_all_families_that_they_belong_to(values):
    assert [p for p, _ in statistics.holm(values)] == pytest.approx(closed(values))


def shares(*values: float, sequences: int = 512) -> tuple[dict, dict]:
    return seeds(*values), seeds(*(statistics.share_variance(x, sequences) for x in values))


def compared(sequences: int = 512, **scores: tuple) -> Comparison:
    made = {name: shares(*values, sequences=sequences) for name, values in scores.items()}
    return compare({name: x for name, (x, _) in made.items()}, {name: v for name, (_, v) in made.items()})


def test_all_right_against_all_wrong_on_every_seed_is_a_difference_and_two_equal_runs_are_none():
    found = compared(a=(1.0, 1.0, 1.0), b=(0.0, 0.0, 0.0), c=(0.0, 0.0, 0.0))
    assert found.above("a") == ["b", "c"] and found.first() == ["a"]
    assert found.above("b") == found.above("c") == [] and found.differences[2].p == 1
    without = compare({"a": seeds(2, 2, 2), "b": seeds(1, 1, 1), "c": seeds(1, 1, 1)})
    assert [d.p for d in without.differences] == [0, 0, 1] and without.first() == ["a"]


def test_a_difference_within_the_error_of_the_held_out_sequences_is_none():
    scores = {"a": (0.99,) * 5, "b": (0.985,) * 5}
    assert compared(512, **scores).first() == []
    assert compared(512_000, **scores).first() == ["a"]
    # By hand: more seeds answer the same sequences and do not make that error smaller.
    error = math.sqrt(statistics.share_variance(0.99, 512) + statistics.share_variance(0.985, 512))
    by_hand = pytest.approx(2 * stats.t.sf(0.005 / error, 4))
    assert compared(512, **scores).differences[0].p == by_hand
    # Holm leaves the largest of three as it is, and a third encoding lends no degrees of freedom.
    assert compared(512, **scores, c=(0.5,) * 5).differences[0].p == by_hand


def test_a_difference_that_is_not_worth_a_claim_is_not_claimed():
    scores = {"a": seeds(1.0, 1.1, 1.2), "b": seeds(0.9, 1.0, 1.1)}
    assert compare(scores).first() == ["a"]
    assert compare(scores, least=0.11).first() == []
    assert compare(scores, least=0.11).unseen >= 0.11


def test_ahead_are_those_of_which_each_is_above_all_the_others():
    def family(*above: str) -> Comparison:
        found = [Difference(one, other, 1.0, 3, 0.01) for one, other in above]
        rest = [Difference(*pair, 1.0, 3, 0.06) for pair in combinations("abc", 2) if "".join(pair) not in above]
        return Comparison(("a", "b", "c"), (*found, *rest), 0.1)

    assert family("ab", "ac").first() == ["a"] and family("ac", "bc").first() == ["a", "b"]
    # b is not told apart from either, so nobody is ahead of all others.
    assert family("ac").first() == [] and family("ac").unbeaten() == ["a", "b"] and family("ac").above("a") == ["c"]
    assert family().first() == [] and family().unbeaten() == ["a", "b", "c"]
    assert Comparison(("a", "b"), (Difference("a", "b", -1.0, 3, 0.01),), 0.1).first() == ["b"]


def two_humps(chance, size):
    """Exact match beyond the trained length, as it is: most seeds nearly right or nearly wrong."""
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
    chance, claimed = np.random.default_rng(count), 0
    for _ in range(200):
        rows = NULLS[null](chance, (7, count)).tolist()
        claimed += any(
            d.p < statistics.LEVEL for d in compared(**{f"e{i}": row for i, row in enumerate(rows)}).differences
        )
    assert claimed / 200 <= 0.05


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("pairs", [1, 21])
def test_what_would_be_seen_is_found_in_80_of_100_simulations(count, pairs):
    level = 0.05 / pairs
    x = statistics.standard_errors_to_see(count - 1, level)
    drawn = np.random.default_rng(pairs).normal(x / math.sqrt(count), 1, (40_000, count))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(count))
    assert np.mean(np.abs(t) > stats.t.isf(level / 2, count - 1)) == pytest.approx(0.80, abs=0.01)


def test_a_difference_as_large_as_is_said_to_be_seen_is_claimed_in_about_80_of_100_families():
    chance, found = np.random.default_rng(1), 0
    # What is said with the true spread: sqrt(2) sigma for the difference of two, three pairs.
    seen = math.sqrt(2) / math.sqrt(5) * statistics.standard_errors_to_see(4, 0.05 / 3)
    for _ in range(300):
        rows = chance.normal([[seen], [0.0], [0.0]], 1, (3, 5)).tolist()
        found += "b" in compare({name: seeds(*row) for name, row in zip("abc", rows, strict=True)}).above("a")
    assert 0.74 <= found / 300 <= 0.90


def test_what_goes_unseen_comes_from_the_pooled_spread_at_the_corrected_level():
    rows = {"a": (1.0, 2.0, 4.0, 4.5), "b": (0.5, 1.8, 3.1, 4.1), "c": (0.1, 2.2, 3.0, 4.4)}
    found = compare({name: seeds(*row) for name, row in rows.items()})
    variances = [np.var(np.subtract(rows[i], rows[j]), ddof=1) for i, j in ("ab", "ac", "bc")]
    by_hand = math.sqrt(np.mean(variances) / 4) * statistics.standard_errors_to_see(3, 0.05 / 3)
    assert found.unseen == pytest.approx(by_hand)


def test_one_that_is_always_right_is_found_ahead_of_six_that_fall_apart():
    chance = np.random.default_rng(2)
    scores = {f"e{i}": (chance.binomial(512, chance.beta(2, 30, 5)) / 512).tolist() for i in range(6)}
    found = compared(**scores, cheat=[1.0] * 5)
    assert found.first() == ["cheat"] and len(found.above("cheat")) == 6


@pytest.mark.slow
def test_the_processes_of_a_sweep_load_no_scipy():
    script = "import sys, posenc.lab.sweeps.sweep, posenc.cli.terminal; print('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
