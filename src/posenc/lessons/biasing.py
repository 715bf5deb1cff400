"""Lesson 12: a bias is added to the logit, and depends on the distance."""

import math
from types import ModuleType

from posenc.lessons import answer

PLACE = 12


def slopes_are_powers_of_one_ratio(answers: ModuleType) -> None:
    """slopes(heads) is 2^(-8 h/heads) for h = 1, 2, ..., heads"""
    slopes = answer(answers, "slopes")
    for heads in (8, 4, 16):
        expected = [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
        result = [float(slope) for slope in slopes(heads)]
        assert len(result) == heads, f"{heads} heads have {heads} slopes, got {len(result)}"
        assert heads == 8 or not math.isclose(result[0], 0.5), (
            f"the first of {heads} slopes is {expected[0]:g}: 1/2 is the first one of 8 heads only"
        )
        assert not math.isclose(result[0], 1.0), "the first slope is 1: h counts from 1 to heads, not from 0"
        assert all(map(math.isclose, result, expected)), (
            f"the slopes of {heads} heads begin with {expected[0]:g}, {expected[1]:g}, and yours with {result[0]:g}, "
            f"{result[1]:g}"
        )


def t5_tells_near_distances_apart(answers: ModuleType) -> None:
    """same_to_t5(first, second) compares the buckets of two distances: 16 exact ones, then 16 in equal ratios to 128"""
    share = answer(answers, "same_to_t5")
    assert not share(3, 4) and share(3, 3), "below 16 each distance has a bucket of its own: 3 and 4 are told apart"
    assert not share(15, 16), "15 is the last exact bucket, and 16 begins the next: they are told apart"
    assert share(60, 64), "from 16 on a bucket holds several distances: 60 and 64 share one"
    assert not share(16, 20), "from 16 on there are 16 buckets in equal ratios: 16 and 20 are told apart"
    words = "all distances from 128 on share the last bucket, 31: take the smaller of it and the formula"
    assert share(128, 5000), words
    words = "the last bucket, 31, begins at 113 (16 times 8^(15/16)): 120 and 128 share it, and 110 is not in it"
    assert share(120, 128) and not share(110, 120), words


EXERCISES = (slopes_are_powers_of_one_ratio, t5_tells_near_distances_apart)
