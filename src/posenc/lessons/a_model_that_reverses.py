"""Lesson 8: a model that reverses sequences, by position alone."""

from types import ModuleType

import torch

from posenc.lessons import answer, same

PLACE = 8


def reversed_within_leaves_the_padding(theirs: ModuleType) -> None:
    """reversed_within(ids, lengths) has ids[b, lengths[b] - 1 - i] at place i, and ids[b, i] where i is padding"""
    reversed_within = answer(theirs, "reversed_within")
    ids = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]])
    right = torch.tensor([[3, 2, 1, 0, 0], [8, 7, 6, 5, 4], [9, 0, 0, 0, 0]])
    mistakes = {
        "the padding has moved to the front; only the first lengths[b] tokens are reversed": ids.flip(1),
        "the batch is reversed, and its rows are not: tokens are axis 1": ids.flip(0),
        "both axes are reversed; tokens are axis 1 alone": ids.flip(0, 1),
        "nothing is reversed": ids,
    }
    given = reversed_within(ids.clone(), torch.tensor([3, 5, 1]))
    same("reversed_within of rows with 3, 5 and 1 tokens", given, right, mistakes)


def exact_match_counts_whole_sequences(theirs: ModuleType) -> None:
    """exact_match(predicted, target) is the mean over sequences of whether all tokens are right"""
    exact_match = answer(theirs, "exact_match")
    target = torch.arange(20).view(4, 5)
    predicted = target.clone()
    predicted[0, 2] = predicted[3, 1] = predicted[3, 4] = 99
    mistakes = {
        "this is the share of tokens that are right; a sequence counts if all of its tokens are": 17 / 20,
        "this is a count; divide it by the number of sequences": 2.0,
        "one wrong token spoils the whole batch; `all` has to run over tokens alone, axis 1": 0.0,
        "a share lies between 0 and 1; here it is in percent": 50.0,
        "only places that are right in every sequence are counted; `all` has to run over tokens, axis 1": 2 / 5,
    }
    same("exact_match of four sequences, two of them right", exact_match(predicted, target), 0.5, mistakes)
    same("exact_match of equal sequences", exact_match(target, target), 1.0)


EXERCISES = (reversed_within_leaves_the_padding, exact_match_counts_whole_sequences)
