"""Lesson 5: token vectors and position vectors, added number by number."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posenc.lessons import answer, compare, definition
from posenc.lessons._positional import build_module, position_vectors

PLACE = 5


def position_rows(places: list[int]) -> Tensor:
    rows = [[math.sin(p), math.cos(p), math.sin(0.01 * p), math.cos(0.01 * p)] for p in places]
    return torch.tensor(rows, dtype=torch.float64)


def embed_looks_tokens_up_and_adds_positions(answers: ModuleType) -> None:
    """embed(ids, E) is E[ids] plus the rows sin p, cos p, sin 0.01 p, cos 0.01 p of positions 0, 1, 2, ..."""
    embed = answer(answers, "embed")
    E = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids = [7, 2, 7, 5]
    tokens, positions = E[ids], position_rows([0, 1, 2, 3])
    mistakes = {
        "these are the tokens alone; the positions are missing": tokens,
        "the position is where a token stands, and not its id": tokens + position_rows(ids),
        "the first token stands at position 0, and not at 1": tokens + position_rows([1, 2, 3, 4]),
        "the tokens are rows of E chosen by their ids, and not the first rows": E[:4] + positions,
        "sines and cosines take turns: sin, cos, sin, cos": tokens + positions[:, [0, 2, 1, 3]],
    }
    result = embed(torch.tensor(ids), E)
    compare("embed of four ids", result, tokens + positions, mistakes)


def position_over_token_is_a_ratio_of_lengths(answers: ModuleType) -> None:
    """position_over_token(std, dim) is sqrt(dim/2) divided by std sqrt(dim)"""
    position_over_token = answer(answers, "position_over_token")
    for std, dim in ((1.0, 512), (0.02, 64)):
        right = (dim / 2) ** 0.5 / (std * dim**0.5)
        mistakes = {
            "this is the token over the position": 1 / right,
            "a position has the length sqrt(dim/2): each pair has length 1, and there are dim/2": 1 / std,
            "lengths are square roots of sums of squares; these are the sums": (dim / 2) / (std**2 * dim),
        }
        compare(f"position_over_token({std}, {dim})", position_over_token(std, dim), right, mistakes)


EXERCISES = (embed_looks_tokens_up_and_adds_positions, position_over_token_is_a_ratio_of_lengths)


def tokens_are_looked_up_and_positions_added(source: Callable[..., Any]) -> None:
    """PositionalEncoding(vocab_size, context_len, dim) maps ids [batch, tokens] to the vector of each token plus the
    vector of its position"""
    module, takes_ids = build_module(source)
    assert takes_ids, "it takes no ids: build it of vocab_size, context_len and a dim"
    position_vectors(module, takes_ids)
    ids = torch.tensor([[1, 2, 1], [3, 1, 4]])
    first = module(ids)[:, 0]
    assert not torch.allclose(first[0], first[1]), "two tokens at one position get the same vector"


HAND_IN = definition, (tokens_are_looked_up_and_positions_added,)
