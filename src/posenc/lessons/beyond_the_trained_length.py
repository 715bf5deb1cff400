"""Lesson 10: what a trained model does with longer sequences, and how that is measured."""

import math
from dataclasses import replace
from types import ModuleType

import torch

from posenc.lessons import Numbers, answer, compare, read_numbers

PLACE = 10


def ratio_compares_perplexities(answers: ModuleType) -> None:
    """ratio(bits_trained, bits_longer) is 2^bits_longer / 2^bits_trained: perplexities are compared, not bits"""
    ratio = answer(answers, "ratio")
    mistakes = {
        "this divides bits; perplexity is 2 to the power of them, so one bit is a factor 2": 1.5,
        "this is a difference of bits; perplexity is 2 to the power of them, so one bit is a factor 2": 1,
        "the longer length stands above, the trained one below: worse is more than 1": 0.5,
        "bits are logarithms to the base 2, not e": math.e,
    }
    compare("ratio(2.0, 3.0)", ratio(2.0, 3.0), 2, mistakes)
    compare("ratio(3.0, 1.0)", ratio(3.0, 1.0), 0.25)


def distances_beyond_the_trained_length_are_new(answers: ModuleType) -> None:
    """new_distances(trained, longer): a window of n tokens has the distances 0 to n - 1"""
    new = answer(answers, "new_distances")
    mistakes = {
        "64 tokens have the distances 0 to 63, and 32 tokens 0 to 31: count both ends": 31,
        "64 tokens have the distances 0 to 63, so 64 is not one of them": 33,
        "of the distances 0 to 63, only those from 32 on are new": 64,
    }
    compare("new_distances(32, 64)", new(32, 64), 32, mistakes)
    compare("new_distances(32, 32)", new(32, 32), 0)
    compare(
        "new_distances(64, 32)", new(64, 32), 0, {"a shorter window has no new distance, and not less than none": -32}
    )


EXERCISES = (ratio_compares_perplexities, distances_beyond_the_trained_length_are_new)


def curve_is_that_of_the_run(result: Numbers) -> None:
    """Save length and score for the trained length and for two or more longer ones.

    A score is the share of new sequences of that length without a mistake; for a text it is bits per byte."""
    from posenc.lab.evaluation.evaluate import scores_at_length

    lengths, scores = [int(n) for n in result.take("length")], result.take("score")
    trained_length = result.run.experiment.train_length
    assert len(lengths) == len(scores), f"{len(lengths)} lengths have {len(scores)} scores"
    assert trained_length in lengths, f"the trained length {trained_length} is missing; is it a curve over steps?"
    longer = tuple(sorted(n for n in lengths if n > trained_length))
    assert len(longer) > 1, f"it stops at length {max(lengths)}: give two lengths or more beyond the trained one"
    run = replace(result.run, experiment=replace(result.run.experiment, test_lengths=longer))
    rows = [scores_at_length(run, n) for n in lengths]
    name = "bits_per_byte" if run.task.in_bits else "exact_match"
    right = {
        key: torch.tensor([math.nan if row[key] is None else row[key] for row in rows])
        for key in (name, "token_accuracy")
    }
    at_trained = right[name][lengths.index(trained_length)]
    assert run.task.in_bits or at_trained >= 0.99, (
        f"the run has not learned its task ({at_trained:.0%} right); train longer"
    )
    mistakes = {
        "these are shares of tokens; an answer is right when all of its tokens are": right["token_accuracy"],
        "in percent; a share lies between 0 and 1": 100 * right[name],
    }
    compare("the score at these lengths", scores, right[name], mistakes, tolerance=0.1)


HAND_IN = read_numbers, (curve_is_that_of_the_run,)
