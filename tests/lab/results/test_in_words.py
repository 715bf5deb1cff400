"""What figures show is said from the numbers, for those who do not see them."""

import numpy as np
import pytest
from fake_records import record, with_scores

from posenc.lab.results import in_words

EXACT = [
    with_scores(record("alibi"), 1, 1, 1, 1),
    with_scores(record("learned"), 1, 0.5, 0, 0),
    with_scores(record("none"), 0.4, 0, 0, 0),
]


def test_scores_beyond_the_trained_length_stay_rise_or_fall():
    assert in_words.extrapolation(EXACT, "repeat") == (
        "Exact match in percent: alibi stays at 100 up to 2x and learned falls from 100 to 0 at 2x. "
        "none did not learn the task."
    )
    text = [record("alibi", "text"), record("learned", "text")]
    for run, ratio in zip(text, (1.0, 1.9), strict=True):
        run["lengths"][-1] |= {"perplexity_ratio": ratio, "sliding_bits_per_byte": 3.0}
        run["lengths"][0] |= {"perplexity_ratio": 1.0, "sliding_bits_per_byte": 3.0}
    said = in_words.extrapolation(text, "text")
    assert said.startswith(
        "Perplexity relative to the trained length: alibi stays at 1.00 up to 8x and learned rises from 1.00 to 1.90 "
        "at 8x."
    )
    assert said.endswith(
        "Bits per byte in sliding windows: alibi stays at 3.00 up to 8x and learned stays at 3.00 up to 8x."
    )


def test_learning_says_when_it_was_over():
    runs = [record("alibi", steps_to_learned=600, cpu_s_to_learned=9.5), record("none", learned=False)]
    assert in_words.learning(runs, "repeat") == (
        "99 % are right after: 600 steps, 9.5 CPU seconds with alibi. none did not learn the task."
    )
    bits = record("alibi", "text", in_distribution={"bits_per_byte": 2.5})
    assert in_words.learning([bits], "text") == "Bits per byte at the end of training: alibi 2.50."


def test_an_ablation_says_what_is_left_of_each():
    run = record("alibi")
    run["ablation"] |= {"intact": 1.0, "removed": 0.0, "shuffled": 0.08, "shifted": 1.0, "swapped": None}
    assert in_words.ablation([run], "repeat") == (
        "Exact match in percent. alibi: 100 as trained, 0 position removed, 8 positions shuffled, 100 positions "
        "shifted."
    )


def test_a_hidden_thing_is_found_least_somewhere():
    run = record("alibi", "pass_key")
    run["depths"] = [
        {"length": 10, "depth": 0.0, "exact_match": 1.0},
        {"length": 20, "depth": 0.5, "exact_match": 0.25},
    ]
    assert in_words.depths([run], "pass_key") == (
        "Least is found: alibi finds 100 % at best and 25 % at length 20, 50 % into the text."
    )


def test_the_headline_says_time_and_reach():
    runs = [with_scores(record("alibi", cpu_s_to_learned=4.0), 1, 1, 1, 0)]
    assert in_words.headline(runs) == "repeat, time to learn and reach: alibi 4.0 CPU seconds and 1.5x."


def test_pictures_of_encodings_are_said_in_numbers():
    run = record("alibi")
    run["pictures"] = {
        "added": [[3.0, 4.0], [6.0, 8.0], [-3.0, -4.0]],
        "wavelengths": [6.28, 700.0],
        "rotation": [1.0, -0.5, 0.25],
        "bias": {"distance": [0, 1, 2], "heads": [[0, -1.0, -2.0], [0, -0.001, -0.5]]},
    }
    assert in_words.added([run]) == (
        "Root mean square over channels: alibi on repeat adds values of size 3.54 at position 0 and 3.54 at position 2."
    )
    assert in_words.wavelengths([run]) == "For one turn: alibi needs from 6.3 to 700 positions, over 2 pairs."
    assert in_words.similarity([run]) == (
        "Cosine: alibi on repeat 0.00 of neighbours, -1.00 of first and last and alibi 1.00 at no distance, least at 1 "
        "with -0.50."
    )
    assert in_words.bias([run]) == "The heads add: alibi on repeat -1.00 to 0.00 at distance 1, -2.00 to -0.50 at 2."


@pytest.mark.parametrize(
    ("offset", "words"), [(0, "the token itself"), (1, "the token before"), (None, "the first token")]
)
def test_attention_says_where_heads_look(offset, words):
    weights = np.zeros((1, 2, 6, 6))
    for query in range(6):
        weights[0, 0, query, 0 if offset is None else max(0, query - offset)] = 1
        weights[0, 1, query, : query + 1] = 1 / (query + 1)
    run = record("alibi") | {"attention": {"with": weights.tolist(), "tokens": [*"abcdef"]}}
    assert in_words.attention(run) == (
        f"With position: of 2 heads 1 looks mostly at {words} and 1 looks at many tokens or at others."
    )


def test_nothing_is_said_of_nothing():
    bare = [record("none") | {"pictures": None, "curve": None, "ablation": None, "lengths": None, "attention": None}]
    for say in (in_words.added, in_words.wavelengths, in_words.similarity, in_words.bias, in_words.headline):
        assert say(bare) == ""
    assert (
        in_words.extrapolation(bare, "repeat")
        == in_words.ablation(bare, "repeat")
        == in_words.depths(bare, "repeat")
        == ""
    )
    assert in_words.attention(bare[0]) == ""
