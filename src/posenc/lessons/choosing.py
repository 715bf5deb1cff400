"""Lesson 15: questions first, then a measurement, and what a few seeds can say."""

from types import ModuleType

from posenc.lessons import answer

PLACE = 15


def nothing_is_printed_of_what_was_not_learned(answers: ModuleType) -> None:
    """cell(trained, beyond) is beyond where trained is 0.99 or more, else the words "not learned" """
    cell = answer(answers, "cell")
    result = cell(1.0, 0.4)
    assert result != "not learned", "with 1.0 at the trained length it has learned, however few are right beyond it"
    assert result == 0.4, f"learned, and 0.4 beyond: the cell is the number 0.4, got {result!r}"
    assert cell(1.0, 0.0) == 0.0, "a model that learned and fails beyond is a result: the cell is 0.0"
    words = f"0.95 at the trained length is not learned: the number beyond says nothing, got {cell(0.95, 0.4)!r}"
    assert cell(0.95, 0.4) == "not learned", words
    assert cell(0.99, 0.4) == 0.4, "0.99 itself is learned"


def overlapping_seeds_are_a_tie(answers: ModuleType) -> None:
    """says(first, second) is "tie", unless all seeds of one are above all of the other. Each needs 3 or more"""
    says = answer(answers, "says")
    upper, lower = [0.9, 0.95, 0.92], [0.1, 0.3, 0.2]
    assert says(upper, lower) == "first", "every seed of the first is above every one of the second"
    assert says(lower, upper) == "second", "every seed of the second is above every one of the first"
    result = says([0.9, 0.2, 0.9], [0.3, 0.4, 0.5])
    assert result == "tie", f"the ranges overlap, so it is a tie whatever the means are; got {result!r}"
    result = says([0.9, 0.8, 0.3], [0.1, 0.2, 0.3])
    assert result == "tie", f"one seed of either scores 0.3, so not all are above: a tie; got {result!r}"
    result = says([0.9, 0.95], [0.1, 0.3])
    assert result == "tie", f"two seeds are too few to say anything: a tie; got {result!r}"


EXERCISES = (nothing_is_printed_of_what_was_not_learned, overlapping_seeds_are_a_tie)
