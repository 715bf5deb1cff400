"""Lesson 4: why frequencies fall by one factor."""

import math
from types import ModuleType

import torch

from posenc.lessons import answer, compare

PLACE = 4


def wavelengths_of(dim: int, base: float) -> torch.Tensor:
    return 2 * math.pi * torch.tensor([base ** (2 * k / dim) for k in range(dim // 2)], dtype=torch.float64)


def wavelengths_grow_by_one_factor(answers: ModuleType) -> None:
    """wavelength k is 2 pi / f_k = 2 pi base^(2k/dim) positions, for k = 0..dim/2 - 1"""
    wavelengths = answer(answers, "wavelengths")
    for dim, base in ((8, 10_000), (6, 500)):
        right = wavelengths_of(dim, base)
        end = torch.tensor([base ** (k / (dim // 2 - 1)) for k in range(dim // 2)], dtype=torch.float64)
        mistakes = {
            "the shortest wavelength comes first": right.flip(0),
            "a turn has 2 pi radians, so a hand of one radian per position needs 6.28 positions": right / (2 * math.pi),
            "these are frequencies; the wavelength is 2 pi / f_k": 2 * math.pi / right,
            "2 pi is to be divided by the frequency, and here it is multiplied by it": (2 * math.pi) ** 2 / right,
            "the exponent is 2k/dim, which ends at (dim - 2)/dim and not at 1": 2 * math.pi * end,
            "the exponent is 2k/dim, and not k/dim": (2 * math.pi * right).sqrt(),
            "base is to stand in place of 10000": wavelengths_of(dim, 10_000) if base != 10_000 else math.nan,
        }
        compare(f"wavelengths({dim}, {base})", wavelengths(dim, base), right, mistakes)


def untrained_pairs_do_not_complete_a_turn(answers: ModuleType) -> None:
    """untrained_pairs(length, dim, base) counts the wavelengths above the length"""
    untrained_pairs = answer(answers, "untrained_pairs")
    for length, dim, base in ((512, 512, 10_000), (100, 64, 500), (100_000, 16, 10_000)):
        waves = wavelengths_of(dim, base)
        count = int((waves > length).sum())
        mistakes = {
            "these are the pairs that do complete a turn": dim // 2 - count,
            "these are channels; a pair has two of them": 2 * count,
            "this is a share of the pairs; count them": count / (dim // 2),
            "a wavelength is 2 pi / f_k, and not 1 / f_k": int((waves / (2 * math.pi) > length).sum()),
        }
        compare(f"untrained_pairs({length}, {dim}, {base})", untrained_pairs(length, dim, base), count, mistakes)


EXERCISES = (wavelengths_grow_by_one_factor, untrained_pairs_do_not_complete_a_turn)
