"""Which encoding is ahead follows from runs paired by seed; runs that did not learn count as failures."""

import numpy as np
import pytest
from fake_records import comparison, record, repeat, with_scores
from scipy import stats

from posenc.lab.experiments.recipes import RECIPE_SEEDS
from posenc.lab.results import statistics, summary
from posenc.lab.results.summary import claims


def paragraph(records, heading="repeat"):
    return dict(summary.paragraphs(records))[heading]


def result(records, label):
    return next(r for r in summary.results(records) if r.label == label)


def with_scores_at(records, at=3, **scores):
    """Change the exact match at one length of each seed of some encodings."""
    for run in records:
        seed_scores = scores.get(run["experiment"]["spec"])
        if seed_scores:
            run["lengths"][at]["exact_match"] = seed_scores[run["experiment"]["seed"]]
    return records


def with_times(**times):
    records = repeat(dict.fromkeys(times, (1, 0, 0, 0)), seeds=len(next(iter(times.values()))))
    for run in records:
        run["cpu_s_to_learned"] = times[run["experiment"]["spec"]][run["experiment"]["seed"]]
    return records


def test_one_that_reads_the_answer_is_found_ahead_of_all_others_at_every_length():
    records = comparison(
        ("repeat",), seeds=5, encodings=("sinusoidal", "learned", "rotary", "alibi", "t5_bias", "shaw")
    )
    records += repeat({"mine.py:Cheat": (1, 1, 1, 1)}, seeds=5)
    task_results = summary.results(records)
    for measure in (claims.REACH, claims.exact_match_at(1.5), claims.exact_match_at(2.0)):
        assert [r.label for r in claims.winning_results(task_results, measure)] == ["mine.py:Cheat"]
    assert "In reach, `mine.py:Cheat` is ahead of all others." in paragraph(records)
    assert "`mine.py:Cheat` on repeat in reach, exact match" in paragraph(records, "Which one do I need?")


def test_a_lead_takes_every_pair_and_else_only_the_pairs_that_differ_are_named():
    scores = {"alibi": (1, 1, 1, 1), "shaw": (1, 1, 1, 1), "rotary": (1, 0, 0, 0)}
    even = paragraph(with_scores_at(repeat(scores, seeds=5), alibi=(1, 1, 1, 1, 0.97), shaw=(1, 1, 0.92, 1, 1)))
    assert "In reach, `alibi` and `shaw` are ahead of all others." in even
    # Three of five seeds of shaw carry at all: it does not differ significantly from alibi or rotary.
    text = paragraph(with_scores_at(repeat(scores, seeds=5), at=1, shaw=(1, 0.5, 1, 0.5, 1)))
    assert "In reach, `alibi` is ahead of `rotary`." in text
    worse = paragraph(with_scores_at(repeat(scores, seeds=5), alibi=(1, 1, 1, 1, 0.97), shaw=(0.8, 0.3, 0.2, 0.1, 0.5)))
    assert "In reach, `alibi` is ahead of all others." in worse


def test_where_nothing_differs_the_words_say_that_no_difference_is_significant():
    records = with_times(alibi=(4.0, 6.0, 5.0), rotary=(5.0, 4.1, 6.2))
    assert "In CPU seconds to 99 %, no difference is significant." in paragraph(records)
    assert "no difference is significant" not in paragraph(with_times(alibi=(4.0, 6.0), rotary=(5.0, 4.1)))


@pytest.mark.parametrize(
    ("alibi", "rotary", "fastest"),
    [
        ((3.0, 4.0, 5.0), (5.6, 6.0, 9.0), True),
        # The ranges overlap, but with every seed alibi takes two thirds of the time of rotary.
        ((3.0, 4.0, 7.0), (4.5, 6.1, 10.4), True),
        ((3.0, 4.0, 7.0), (9.0, 4.1, 6.1), False),
        # A difference of at most a tenth is never claimed, however regular.
        ((3.0, 4.0, 5.0), (3.27, 4.37, 5.45), False),
        ((3.0, 4.0, 5.0), (3.45, 4.6, 5.76), True),
    ],
)
def test_the_fastest_is_faster_by_ratios_of_paired_seeds(alibi, rotary, fastest):
    records = with_times(alibi=alibi, rotary=rotary)
    (difference,) = claims.compare_encodings(summary.results(records), claims.CPU_SECONDS).differences
    assert difference.p == pytest.approx(stats.ttest_rel(np.log(rotary), np.log(alibi)).pvalue)
    assert ("In CPU seconds to 99 %, `alibi` is ahead of all others." in paragraph(records)) is fastest


@pytest.mark.parametrize(
    ("shaw", "is_winner"), [((2.5, 2.52, 2.49), True), ((2.6, 2.9, 2.5), False), ((2.594,) * 3, False)]
)
def test_the_best_prediction_differs_by_more_than_chance_and_more_than_a_hundredth_of_a_bit(shaw, is_winner):
    records = comparison(("text",), seeds=3, encodings=("shaw", "alibi"))
    for run in records:
        alone = run["experiment"]["spec"] == "alibi"
        run["in_distribution"]["bits_per_byte"] = 2.6 if alone else shaw[run["experiment"]["seed"]]
    text = paragraph(records, "text")
    assert ("In bits per byte, `shaw` is ahead of all others." in text) is is_winner
    assert ("In bits per byte, no difference is significant." in text) is not is_winner
    assert ("`shaw` on text in bits per byte, " in paragraph(records, "Which one do I need?")) is is_winner


def test_bits_are_told_at_each_length_before_who_stays_flat():
    records = comparison(("text",), seeds=3, encodings=("shaw", "alibi"))
    for run in records:
        for entry in run["lengths"]:
            is_near = entry["factor"] <= 2
            entry["bits_per_byte"] = 2.5 if (run["experiment"]["spec"] == "shaw") is is_near else 2.9
            entry["perplexity_ratio"] = 1.3 if run["experiment"]["spec"] == "shaw" else 1.0
    text = paragraph(records, "text")
    sentences = [
        "In bits per byte at 2x, `shaw` is ahead",
        "In bits per byte at 4x, `alibi` is ahead",
        "In R(8), `alibi` is",
    ]
    assert [text.index(words) for words in sentences] == sorted(text.index(words) for words in sentences)


def test_how_fast_perplexity_grows_is_compared_at_the_longest_length():
    text = paragraph(comparison(("text",), seeds=3, encodings=("alibi", "shaw", "rotary")), "text")
    assert "In R(8), `alibi` is ahead of all others." in text


def test_a_seed_that_did_not_learn_takes_no_lead_away_and_counts_as_one_that_does_not_carry():
    records = repeat({"alibi": (1, 1, 1, 1), "rotary": (1, 0, 0, 0)}, seeds=5)
    for seed in (1, 3):
        records[seed] = with_scores(records[seed], 0.5, 1, 1, 1)
    text = paragraph(records)
    assert "In reach, `alibi` is ahead of all others." in text
    assert (
        "`alibi` in 3 of 5 seeds only; lengths and times are compared on the seeds where both of a pair learned."
        in text
    )
    comparison_in_reach = claims.compare_encodings(summary.results(records), claims.REACH)
    assert [d.seeds for d in comparison_in_reach.differences] == [3]
    third = summary.results([*records, *repeat({"shaw": (1, 0, 0, 0)}, seeds=5)])
    assert "With 3 seeds, the fewest of a pair, these" in claims.power_sentence(third, [claims.CPU_SECONDS])
    # One more failure leaves too few seeds for a claim, and fewer than half carry.
    records[0] = with_scores(records[0], 0.5, 1, 1, 1)
    text = paragraph(records)
    assert "In reach" not in text and claims.longest_reach(result(records, "alibi")) is None


def test_how_many_seeds_carry_is_counted_over_all_of_them_and_without_gaps():
    records = repeat({"alibi": (1, 1, 1, 1)}, seeds=5)
    records[1] = with_scores(records[1], 1, 0.95, 0.5, 0.97)
    records[2] = with_scores(records[2], 0.5, 1, 1, 1)
    records[3] = with_scores(records[3], 1, 0.9, 0.9, 0.89)
    alibi = result(records, "alibi")
    assert [claims.run_reach(run) for run in records] == [2.0, 1.2, 0.0, 1.5, 2.0]
    assert [(at.length, at.factor, at.count, at.seeds) for at in claims.seed_shares(alibi)] == [
        (12, 1.2, 4, 5), (15, 1.5, 3, 5), (20, 2.0, 2, 5)
    ]  # fmt: skip
    wilson = stats.binomtest(3, 5).proportion_ci(0.95, method="wilson")
    share = claims.seed_shares(alibi)[1]
    assert (share.low, share.high) == pytest.approx((wilson.low, wilson.high))
    assert claims.longest_reach(alibi).length == 15
    assert claims.reach_estimate(alibi) == summary.Estimate(1.5, 0.0, 2.0, 5)
    # Two of four are not more than half.
    four = result(records[:4], "alibi")
    assert claims.longest_reach(four).length == 12 and claims.reach_estimate(four) == summary.Estimate(1.2, 0.0, 2.0, 4)
    [(headings, (row,), _)] = summary.plain_tables(records)
    assert (
        row[headings.index("carries to")] == "15 (3 of 5 seeds)"
        and row[headings.index("seeds")] == "5 (4 of 5 learned)"
    )


def test_what_would_go_unseen_is_said_with_the_seeds_and_the_measures():
    records = with_scores_at(repeat({"alibi": (1, 1, 1, 1), "shaw": (1, 1, 1, 1)}, seeds=3), alibi=(1.0, 0.9, 0.95))
    task_results = summary.results(records)
    sentence = claims.power_sentence(task_results, [claims.exact_match_at(2.0), claims.CPU_SECONDS])
    points = claims.compare_encodings(task_results, claims.exact_match_at(2.0)).detectable_difference
    assert sentence.startswith(f"With 3 seeds these differences would go unseen: below {100 * points:.0f} points in")
    assert f"below {100 * points:.0f} points in exact match at 2x and below 1." in paragraph(records)
    wild = with_scores_at(repeat({"alibi": (1, 1, 1, 1), "shaw": (1, 1, 1, 1)}, seeds=3), alibi=(1.0, 0.0, 0.95))
    assert "any in exact match at 2x" in claims.power_sentence(summary.results(wild), [claims.exact_match_at(2.0)])
    assert claims.power_sentence(summary.results(records[:2]), [claims.CPU_SECONDS]) == ""


def test_held_out_sequences_of_the_record_are_the_error_within_a_run():
    records = repeat({"alibi": (1, 1, 1, 1)}, seeds=3)
    assert result(records, "alibi").at(20, "exact_match").low == statistics.share_interval(1.0, 512)[0]
    for run in records:
        for entry in run["lengths"]:
            entry["sequences"] = 2048
    assert result(records, "alibi").at(20, "exact_match").low == statistics.share_interval(1.0, 2048)[0]
    assert result(records, "alibi").in_range().low == statistics.share_interval(1.0, 2048)[0]
    records[1]["lengths"][3]["sequences"] = 128
    assert result(records, "alibi").at(20, "exact_match").low == statistics.share_interval(1.0, 128)[0]
    # A difference below that error is not significant; with more sequences it is.
    close = repeat({"alibi": (1, 1, 1, 0.99), "rotary": (1, 1, 1, 0.985)}, seeds=5)
    assert claims.winning_results(summary.results(close), claims.exact_match_at(2.0)) == []
    for run in close:
        run["lengths"][3]["sequences"] = 512_000
    assert [r.label for r in claims.winning_results(summary.results(close), claims.exact_match_at(2.0))] == ["alibi"]
    # A number outside [0, 1] has no such error, and other measures have none either.
    records[0]["lengths"][3]["exact_match"] = 7.0
    assert result(records, "alibi").at(20, "exact_match").low == 1.0
    assert result(records, "alibi").at(20, "token_accuracy") == summary.Estimate(0.5, 0.5, 0.5, 3)


@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [
        ((2, 2), "Medians over 2 seeds. No encoding with fewer than three is called the best."),
        ((2, 4), "Medians over 2 to 4 seeds. No encoding with fewer than three is called the best."),
        ((3, 3), "Medians over 3 seeds; their intervals hold the true one in at least 75 of 100 cases."),
        ((5, 8), "Medians over 5 to 8 seeds; their intervals hold the true one in at least 93 of 100 cases."),
        ((9, 9), "Medians over 9 seeds; their intervals hold the true one in at least 95 of 100 cases."),
    ],
)
def test_what_rests_on_few_seeds_says_so(seeds, sentence):
    runs = [record(spec, seed=s) for spec, n in zip(("rotary", "alibi"), seeds, strict=True) for s in range(n)]
    assert summary.seeds_sentence(summary.results(runs)) == sentence


def test_the_size_of_the_evidence_is_told():
    runs = [
        record("rotary", seed=100),
        record("alibi", seed=100, steps=600, parameters={"model": 2_000, "encoding": 0}),
        record("none", seed=100),
    ]
    assert summary.scope_sentence(runs) == (
        "This rests on models of 2,000 to 103,452 parameters, at most 1,000 steps, one task and one seed; larger "
        "models and other data may answer differently."
    )
    two = [record(seed=seed, steps=None, parameters=None) for seed in (100, 101)]
    assert summary.scope_sentence(two) == (
        "This rests on one task and up to 2 seeds; larger models and other data may answer differently."
    )
    three = [*two, record(seed=102, steps=None, parameters=None)]
    assert summary.scope_sentence(three).endswith(
        " An order is said only where paired seeds differ at the 5 % level, corrected for all pairs (Holm)."
    )


def test_seeds_on_which_the_recipes_were_chosen_are_told():
    assert 0 in RECIPE_SEEDS and 99 in RECIPE_SEEDS and 100 not in RECIPE_SEEDS
    fresh = [record(seed=seed) for seed in (100, 101)]
    assert "recipes" not in summary.answer(fresh)
    sentence = "The recipes were chosen on seeds below 100, as these runs have; evidence takes others."
    assert sentence in summary.answer([record(seed=99), record(seed=0)])
    assert "as 1 of these 3 runs have" in summary.answer([*fresh, record(seed=99)])


def test_the_headline_has_speed_and_reach_with_what_was_gated_out():
    records = [*repeat({"alibi": (1, 0.95, 0.2, 0), "rotary": (0.5, 0, 0, 0)}, seeds=3), record("shaw", "text")]
    records[2] = with_scores(records[2], 0.5, 1, 1, 1)
    for run, seconds in zip(records[:2], (4.0, 6.0), strict=True):
        run |= {"cpu_s_to_learned": seconds, "steps_to_learned": 100 * seconds}
    alibi, rotary, shaw = summary.headline(records)
    assert (alibi.task, alibi.label, alibi.seeds, alibi.learned) == ("repeat", "alibi", 3, 2)
    assert alibi.cpu_seconds == summary.Estimate(5.0, 5.0, 5.0, 2) and alibi.steps.median == 500
    assert alibi.reach == summary.Estimate(1.2, 0.0, 1.2, 3)
    assert (rotary.learned, rotary.cpu_seconds, rotary.steps) == (0, None, None)
    assert rotary.reach == summary.Estimate(0.0, 0.0, 0.0, 3)
    assert (shaw.cpu_seconds, shaw.reach) == (None, None)
