"""Lesson 1: attention without position does not know order."""

import torch

from posenc.lessons import answer

PLACE = 1


def attend_gives_a_softmax_of_scores(theirs: object) -> None:
    """attend(x) is softmax(x x^T / sqrt(d)) x: scores first, then a softmax over keys, then the weighted sum"""
    attend = answer(theirs, "attend")
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    wanted = torch.softmax(x @ x.T / 8**0.5, -1) @ x
    given = attend(x)
    assert tuple(given.shape) == (5, 8), f"attend of 5 vectors of 8 numbers gives {tuple(given.shape)}, not (5, 8)"
    assert torch.allclose(given, wanted, atol=1e-5), "the numbers are others: is the softmax over keys, the last axis?"


def last_output_is_blind_with_one_causal_layer(theirs: object) -> None:
    """is_blind(layers) is whether the last output of a causal stack of so many layers forgets the order before it"""
    is_blind = answer(theirs, "is_blind")
    assert is_blind(1) is True, "with one causal layer the last output is a sum over a set: it is blind"
    assert is_blind(2) is False, "from the second layer on, tokens differ by what came before them: it is not blind"


EXERCISES = (attend_gives_a_softmax_of_scores, last_output_is_blind_with_one_causal_layer)
