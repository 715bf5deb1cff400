"""Lesson 10: what a trained model does with longer sequences, and how that is measured."""

import math
from types import ModuleType

from posenc.lessons import answer, same

PLACE = 10


def ratio_compares_perplexities(theirs: ModuleType) -> None:
    """ratio(bits_trained, bits_longer) is 2^bits_longer / 2^bits_trained: perplexities are compared, not bits"""
    ratio = answer(theirs, "ratio")
    mistakes = {
        "this divides bits; perplexity is 2 to the power of them, so one bit is a factor 2": 1.5,
        "this is a difference of bits; perplexity is 2 to the power of them, so one bit is a factor 2": 1,
        "the longer length stands above, the trained one below: worse is more than 1": 0.5,
        "bits are logarithms to the base 2, not e": math.e,
    }
    same("ratio(2.0, 3.0)", ratio(2.0, 3.0), 2, mistakes)
    same("ratio(3.0, 1.0)", ratio(3.0, 1.0), 0.25)


def distances_beyond_the_trained_length_are_new(theirs: ModuleType) -> None:
    """new_distances(trained, longer): a window of n tokens has the distances 0 to n - 1"""
    new = answer(theirs, "new_distances")
    mistakes = {
        "64 tokens have the distances 0 to 63, and 32 tokens 0 to 31: count both ends": 31,
        "64 tokens have the distances 0 to 63, so 64 is not one of them": 33,
        "of the distances 0 to 63, only those from 32 on are new": 64,
    }
    same("new_distances(32, 64)", new(32, 64), 32, mistakes)
    same("new_distances(32, 32)", new(32, 32), 0)
    same("new_distances(64, 32)", new(64, 32), 0, {"a shorter window has no new distance, and not less than none": -32})


EXERCISES = (ratio_compares_perplexities, distances_beyond_the_trained_length_are_new)
