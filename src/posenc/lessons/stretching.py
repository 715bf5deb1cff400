"""Lesson 13: a trained RoPE is stretched to longer contexts by other frequencies."""

import math
from types import ModuleType

from posenc.lessons import answer

PLACE = 13


def ntk_base_divides_the_slowest_pair_by_the_factor(theirs: ModuleType) -> None:
    """ntk_base(base, factor, channels) is base factor^(channels/(channels - 2)): factor divides the slowest pair"""
    ntk_base = answer(theirs, "ntk_base")
    assert math.isclose(ntk_base(10_000.0, 1, 128), 10_000.0), "a factor of 1 stretches nothing: the base stays"
    given, wanted = ntk_base(10_000.0, 4, 128), 10_000.0 * 4 ** (128 / 126)
    assert not math.isclose(given, 40_000.0), (
        "base times factor stretches the slowest pair by a little less than the factor: its exponent is "
        "(channels - 2)/channels, so the factor needs the exponent channels/(channels - 2)"
    )
    assert not math.isclose(given, 10_000.0 * 4 ** (126 / 128)), "the exponent stands on its head"
    assert not math.isclose(given, 10_000.0 * 4 ** (64 / 62)), "channels are counted here, not pairs"
    assert math.isclose(given, wanted), (
        f"at base 10,000, factor 4 and 128 channels it is {wanted:,.0f}, got {given:,.0f}"
    )
    assert math.isclose(ntk_base(500.0, 8, 16), 500.0 * 8 ** (16 / 14)), "it does not read all three arguments"


def slow_pairs_are_counted(theirs: ModuleType) -> None:
    """pairs_to_stretch(channels, base, trained) counts the pairs with trained base^(-2k/channels) below 2 pi radians"""
    count = answer(theirs, "pairs_to_stretch")
    given = count(128, 10_000.0, 4096)
    assert given != 46, "these are the pairs that do complete a turn; the others are asked for"
    assert given != 6, "a turn is 2 pi radians, not 1"
    assert given == 18, f"with 128 channels, base 10,000 and 4096 tokens it is 18 of the 64 pairs, got {given}"
    assert count(128, 500_000.0, 4096) == 32, "with a base of 500,000 it is 32: does it read the base?"
    assert count(16, 1000.0, 64) == 5, "with 16 channels, base 1000 and 64 tokens it is 5 of the 8 pairs"


EXERCISES = (ntk_base_divides_the_slowest_pair_by_the_factor, slow_pairs_are_counted)
