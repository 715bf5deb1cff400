"""Lesson 2: a table of vectors, one for each position, added to the tokens."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from posenc.lessons import answer, compare, definition
from posenc.lessons._positional import build_module, position_vectors

PLACE = 2


def add_positions_adds_the_rows_it_needs(answers: ModuleType) -> None:
    """add_positions(x, table) is x + table[:tokens], and raises ValueError where the table has too few rows"""
    add_positions = answer(answers, "add_positions")
    x, table = torch.randn(3, 4), torch.randn(5, 4)
    old_x, right = x.clone(), x + table[:3]
    mistakes = {
        "the first token stands at position 0, so it gets row 0": x + table[1:4],
        "the first rows are wanted, and these are the last": x + table[2:],
        "each token has its own row; here all get row 0": x + table[0],
    }
    try:
        result = add_positions(x, table)
    except RuntimeError as error:
        message = "3 tokens and a table of 5 rows do not fit: take as many rows as there are tokens"
        raise AssertionError(message) from error
    assert torch.equal(x, old_x), "add_positions changes the x that it is given; return a new tensor, as x + rows does"
    compare("add_positions of 3 tokens and 5 rows", result, right, mistakes)
    full = torch.randn(5, 4)
    try:
        result = add_positions(full, table)
    except ValueError as error:
        raise AssertionError("5 tokens and 5 rows fit; refuse only more tokens than rows") from error
    compare("add_positions of 5 tokens and 5 rows", result, full + table)
    try:
        add_positions(torch.randn(6, 4), table)
    except ValueError:
        return
    except Exception as error:
        message = f"6 tokens and 5 rows end in {type(error).__name__}; look at the lengths first, and raise ValueError"
        raise AssertionError(message) from error
    raise AssertionError("6 tokens and 5 rows give a result; the sixth has no row, so raise ValueError")


def untrained_rows_are_those_past_the_longest_text(answers: ModuleType) -> None:
    """untrained_rows(rows, longest) is rows - longest, and 0 where the texts are longer than the table"""
    untrained_rows = answer(answers, "untrained_rows")
    for rows, longest in ((1024, 200), (512, 512), (512, 2048)):
        mistakes = {
            "a count below zero means nothing": rows - longest if longest > rows else math.nan,
            "these are the rows that are trained": min(rows, longest),
        }
        call = f"untrained_rows({rows}, {longest})"
        compare(call, untrained_rows(rows, longest), max(rows - longest, 0), mistakes)


EXERCISES = (add_positions_adds_the_rows_it_needs, untrained_rows_are_those_past_the_longest_text)


def trained_vectors_are_added(source: Callable[..., Any]) -> None:
    """PositionalEncoding(d_model, max_len) adds one trained vector per position to embeddings [batch, tokens, d_model].

    The vectors are the same in every row of the batch. A class that takes vocab_size too looks its ids up first."""
    module, takes_ids = build_module(source)
    positions = position_vectors(module, takes_ids)
    if positions.requires_grad:
        positions.square().sum().backward()
    # The gradients of tokens cancel, but for rounding.
    table = any(p.grad is not None and float(p.grad.abs().max()) > 1e-4 for p in module.parameters())
    assert table, "what it adds is not trained: hold it in an nn.Embedding or an nn.Parameter"


HAND_IN = definition, (trained_vectors_are_added,)
