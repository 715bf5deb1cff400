"""Lesson 3: positions as the hands of a clock."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posenc.lessons import answer, compare, definition
from posenc.lessons._positional import TOKENS, WIDTH, build_module, position_vectors

PLACE = 3


def sine_table(exponents: Tensor, *, base: float, cosine_first: bool = False, halves: bool = False) -> Tensor:
    """Return the table of positions 0 to 6 at frequencies base^-exponent; the options change the order of channels."""
    angle = torch.arange(7, dtype=torch.float64)[:, None] * base**-exponents
    parts = [angle.cos(), angle.sin()] if cosine_first else [angle.sin(), angle.cos()]
    return torch.cat(parts, -1) if halves else torch.stack(parts, -1).flatten(1)


def sinusoidal_is_sines_and_cosines_in_turn(answers: ModuleType) -> None:
    """channel 2k is sin(p f_k) and channel 2k + 1 is cos(p f_k), with f_k = base^(-2k/dim)"""
    sinusoidal = answer(answers, "sinusoidal")
    k = torch.arange(4, dtype=torch.float64)
    for base in (10_000, 500):
        mistakes = {
            "the exponent is -2k/dim, and not -k/dim": sine_table(k / 8, base=base),
            "the exponent is negative: the first hand is the fastest": sine_table(-2 * k / 8, base=base),
            "sines and cosines take turns; here all cosines stand behind": sine_table(
                2 * k / 8, base=base, halves=True
            ),
            "each pair begins with the sine": sine_table(2 * k / 8, base=base, cosine_first=True),
            "base is to stand in place of 10000": sine_table(2 * k / 8, base=10_000) if base != 10_000 else math.nan,
        }
        result = sinusoidal(torch.arange(7), 8, base)
        compare(f"sinusoidal(torch.arange(7), 8, {base})", result, sine_table(2 * k / 8, base=base), mistakes)


def hand_is_the_share_of_a_turn_in_degrees(answers: ModuleType) -> None:
    """hand(position, wavelength) is the part of position / wavelength behind its whole turns, times 360"""
    hand = answer(answers, "hand")
    for position, wavelength in ((3, 12), (15, 12), (100, 62.8)):
        turns = position / wavelength
        mistakes = {
            "whole turns do not move a hand: take the remainder": turns * 360 if turns > 1 else math.nan,
            "these are radians; a turn has 360 degrees": turns % 1 * 2 * math.pi,
            "this is the share of a turn; a whole one has 360 degrees": turns % 1,
        }
        compare(f"hand({position}, {wavelength})", hand(position, wavelength), turns % 1 * 360, mistakes)


EXERCISES = (sinusoidal_is_sines_and_cosines_in_turn, hand_is_the_share_of_a_turn_in_degrees)


def sines_and_cosines_are_added(source: Callable[..., Any]) -> None:
    """PositionalEncoding(d_model, max_len) adds sines and cosines to embeddings [batch, tokens, d_model].

    Channel 2k gets sin(p f_k) and channel 2k + 1 gets cos(p f_k), with f_k = 10000^(-2k/d_model). A class that takes
    vocab_size too looks its ids up first."""
    module, takes_ids = build_module(source)
    k = torch.arange(WIDTH // 2, dtype=torch.float64)
    tables_by_mistake = {
        "right": sine_table(2 * k / WIDTH, base=10_000),
        "each pair begins with the sine": sine_table(2 * k / WIDTH, base=10_000, cosine_first=True),
        "the exponent is -2k/dim, and not -k/dim": sine_table(k / WIDTH, base=10_000),
        "the exponent is -2k/dim, and not -4k/dim": sine_table(4 * k / WIDTH, base=10_000),
        "sines and cosines take turns; here all cosines stand behind": sine_table(
            2 * k / WIDTH, base=10_000, halves=True
        ),
    }
    tables_by_mistake["the first token stands at position 0, and not at 1"] = tables_by_mistake["right"][1:]
    tables = {words: (table - table[0] if takes_ids else table)[:TOKENS] for words, table in tables_by_mistake.items()}
    compare("what it adds", position_vectors(module, takes_ids), tables.pop("right"), tables)


HAND_IN = definition, (sines_and_cosines_are_added,)
