"""Lesson 10: what a trained model does with longer sequences, and how that is measured."""

import math
from types import ModuleType

from posenc.lessons import answer

PLACE = 10


def ratio_compares_perplexities(theirs: ModuleType) -> None:
    """ratio(bits_trained, bits_longer) is 2^bits_longer / 2^bits_trained: perplexities are compared, not bits"""
    ratio = answer(theirs, "ratio")
    assert math.isclose(ratio(2.5, 2.5), 1), "the same loss at both lengths is flat: the ratio is 1"
    given = ratio(2.0, 3.0)
    assert not math.isclose(given, 1.5), (
        "this divides bits; perplexity is 2 to the power of them, so one bit is a factor 2"
    )
    assert not math.isclose(given, 0.5), "the longer length stands above, the trained one below: worse is more than 1"
    assert not math.isclose(given, math.e), "bits are logarithms to the base 2, not e"
    assert math.isclose(given, 2), f"from 2 bits to 3 the perplexity doubles, got {given}"


def distances_beyond_the_trained_length_are_new(theirs: ModuleType) -> None:
    """new_distances(trained, longer): a window of n tokens has the distances 0 to n - 1"""
    new = answer(theirs, "new_distances")
    assert new(32, 64) != 31, "64 tokens have the distances 0 to 63, and 32 tokens 0 to 31: count both ends"
    assert new(32, 64) == 32, f"of the distances 0 to 63, those from 32 on are new: 32 of them, got {new(32, 64)}"
    assert new(32, 32) == 0, "the same length has no new distance"
    assert new(64, 32) == 0, f"a shorter window has no new distance: 0, got {new(64, 32)}"


EXERCISES = (ratio_compares_perplexities, distances_beyond_the_trained_length_are_new)
