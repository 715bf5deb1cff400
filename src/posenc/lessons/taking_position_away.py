"""Lesson 9: what a trained model loses when its positions are taken away or changed."""

from math import nan
from types import ModuleType

import torch

from posenc.lessons import Numbers, answer, check_shape, compare, read_numbers

PLACE = 9


def swapped_changes_neighbours(answers: ModuleType) -> None:
    """swapped([0, 1, 2, 3, ...]) is [1, 0, 3, 2, ...]; the last of an odd number stays"""
    swap = answer(answers, "swapped")
    positions = torch.tensor([10, 11, 12, 13])
    result = check_shape("swapped(positions)", swap(positions), (4,)).tolist()
    assert positions.tolist() == [10, 11, 12, 13], "it changes the tensor that it was given; change a clone of it"
    assert result != [10, 10, 12, 12] and result != [11, 11, 13, 13], (
        f"got {result}: one position was overwritten before it was read; read from the old tensor, write to the clone"
    )
    assert result != [13, 12, 11, 10], "it turns the whole row round; only neighbours change places"
    assert result == [11, 10, 13, 12], f"of [10, 11, 12, 13] it makes {result}, not [11, 10, 13, 12]"
    odd = swap(torch.arange(5)).tolist()
    assert odd == [1, 0, 3, 2, 4], f"of five positions the last one stays: [1, 0, 3, 2, 4], got {odd}"


def differences_survive_a_shift(answers: ModuleType) -> None:
    """survives_a_shift(spec) is whether only differences of positions reach the logits: then a shift changes nothing"""
    survives = answer(answers, "survives_a_shift")
    for spec in ("rotary", "alibi", "t5_bias", "rotary + alibi"):
        assert survives(spec), f"{spec} sees differences of positions only, and a shift changes no difference"
    assert survives("none"), "none reads no position at all, so a shift changes nothing"
    for spec in ("sinusoidal", "learned"):
        words = f"{spec} adds a vector for each position itself, and after a shift it is another vector"
        assert not survives(spec), words


EXERCISES = (swapped_changes_neighbours, differences_survive_a_shift)


def scores_are_those_of_the_run(result: Numbers) -> None:
    """Save intact and removed: the shares of new sequences without a mistake, with positions and without them.

    Both use the weights of the run; for a text they are bits per byte."""
    from posenc.lab.evaluation.ablate import ablate

    run, right = result.run, {name: nan if score is None else score for name, score in ablate(result.run).items()}
    intact, zeros = right["intact"], right["removed"]
    assert run.experiment.spec != "none", "the run has no positions to remove: its encoding is none"
    table = run.task.in_bits or intact >= 0.99
    assert table, f"the run has not learned its task ({intact:.0%} right), so an ablation says nothing; train longer"
    percent = "in percent; a share lies between 0 and 1"
    wrong = {"this is the score with positions removed": zeros, percent: 100 * intact}
    compare("intact", result.take("intact"), intact, wrong, tolerance=0.1)
    wrong = {"this is the score with positions": intact, percent: 100 * zeros}
    compare("removed", result.take("removed"), zeros, wrong, tolerance=0.1)


HAND_IN = read_numbers, (scores_are_those_of_the_run,)
