"""Lesson 3: positions as the hands of a clock."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posenc.lessons import answer, definition, same
from posenc.lessons._positional import TOKENS, WIDTH, module_of, position_vectors

PLACE = 3


def rows(exponents: Tensor, *, base: float, swapped: bool = False, behind: bool = False) -> Tensor:
    """The table of positions 0 to 6 at frequencies base^-exponent; `swapped` and `behind` order channels otherwise."""
    angle = torch.arange(7, dtype=torch.float64)[:, None] * base**-exponents
    parts = [angle.cos(), angle.sin()] if swapped else [angle.sin(), angle.cos()]
    return torch.cat(parts, -1) if behind else torch.stack(parts, -1).flatten(1)


def sinusoidal_is_sines_and_cosines_in_turn(theirs: ModuleType) -> None:
    """channel 2k is sin(p f_k) and channel 2k + 1 is cos(p f_k), with f_k = base^(-2k/dim)"""
    sinusoidal = answer(theirs, "sinusoidal")
    k = torch.arange(4, dtype=torch.float64)
    for base in (10_000, 500):
        mistakes = {
            "the exponent is -2k/dim, and not -k/dim": rows(k / 8, base=base),
            "the exponent is negative: the first hand is the fastest": rows(-2 * k / 8, base=base),
            "sines and cosines take turns; here all cosines stand behind": rows(2 * k / 8, base=base, behind=True),
            "each pair begins with the sine": rows(2 * k / 8, base=base, swapped=True),
            "base is to stand in place of 10000": rows(2 * k / 8, base=10_000) if base != 10_000 else math.nan,
        }
        given = sinusoidal(torch.arange(7), 8, base)
        same(f"sinusoidal(torch.arange(7), 8, {base})", given, rows(2 * k / 8, base=base), mistakes)


def hand_is_the_share_of_a_turn_in_degrees(theirs: ModuleType) -> None:
    """hand(position, wavelength) is the part of position / wavelength behind its whole turns, times 360"""
    hand = answer(theirs, "hand")
    for position, wavelength in ((3, 12), (15, 12), (100, 62.8)):
        turns = position / wavelength
        mistakes = {
            "whole turns do not move a hand: take the remainder": turns * 360 if turns > 1 else math.nan,
            "these are radians; a turn has 360 degrees": turns % 1 * 2 * math.pi,
            "this is the share of a turn; a whole one has 360 degrees": turns % 1,
        }
        same(f"hand({position}, {wavelength})", hand(position, wavelength), turns % 1 * 360, mistakes)


EXERCISES = (sinusoidal_is_sines_and_cosines_in_turn, hand_is_the_share_of_a_turn_in_degrees)


def sines_and_cosines_are_added(made: Callable[..., Any]) -> None:
    """PositionalEncoding(d_model, max_len) adds to embeddings [batch, tokens, d_model] sin(p f_k) in channel 2k and
    cos(p f_k) in channel 2k + 1, with f_k = 10000^(-2k/d_model); one of vocab_size too looks its ids up first"""
    module, takes_ids = module_of(made)
    k = torch.arange(WIDTH // 2, dtype=torch.float64)
    of = {
        "right": rows(2 * k / WIDTH, base=10_000),
        "each pair begins with the sine": rows(2 * k / WIDTH, base=10_000, swapped=True),
        "the exponent is -2k/dim, and not -k/dim": rows(k / WIDTH, base=10_000),
        "the exponent is -2k/dim, and not -4k/dim": rows(4 * k / WIDTH, base=10_000),
        "sines and cosines take turns; here all cosines stand behind": rows(2 * k / WIDTH, base=10_000, behind=True),
    }
    of["the first token stands at position 0, and not at 1"] = of["right"][1:]
    tables = {words: (table - table[0] if takes_ids else table)[:TOKENS] for words, table in of.items()}
    same("what it adds", position_vectors(module, takes_ids), tables.pop("right"), tables)


HAND_IN = definition, (sines_and_cosines_are_added,)
