"""Lesson 1: attention without position does not know order."""

from types import ModuleType

import torch

from posenc.lessons import answer, compare

PLACE = 1


def attend_gives_a_softmax_of_scores(answers: ModuleType) -> None:
    """attend(x) is softmax(x x^T / sqrt(d)) x: scores first, then a softmax over keys, then the weighted sum"""
    attend = answer(answers, "attend")
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    scores = x @ x.T
    mistakes = {
        "the softmax has to run over the keys, dim=-1: each row sums to 1": torch.softmax(scores / 8**0.5, 0) @ x,
        "the scores have to be divided by sqrt(d), d channels": torch.softmax(scores, -1) @ x,
        "the scores have to be divided by sqrt(d), and not by d": torch.softmax(scores / 8, -1) @ x,
        "without a softmax the weights do not sum to 1": scores / 8**0.5 @ x,
        "these are the weights; the sum of x by them is missing": torch.softmax(scores / 8**0.5, -1),
    }
    compare("attend(x)", attend(x), torch.softmax(scores / 8**0.5, -1) @ x, mistakes)


def last_output_is_blind_with_one_causal_layer(answers: ModuleType) -> None:
    """is_blind(layers) is whether the last output of so many causal layers forgets the order before it"""
    is_blind = answer(answers, "is_blind")
    assert is_blind(1), "is_blind(1): with one causal layer the last output is a sum over a set, and is blind"
    for layers in (2, 3):
        words = f"is_blind({layers}): from the second layer on, tokens differ by what came before them: it is not blind"
        assert not is_blind(layers), words


EXERCISES = (attend_gives_a_softmax_of_scores, last_output_is_blind_with_one_causal_layer)
