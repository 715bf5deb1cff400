"""Lesson 13: a trained RoPE is stretched to longer contexts by other frequencies."""

from types import ModuleType

from posenc.lessons import answer, compare

PLACE = 13


def ntk_base_divides_the_slowest_pair_by_the_factor(answers: ModuleType) -> None:
    """ntk_base(base, factor, channels) is base factor^(channels/(channels - 2)): factor divides the slowest pair"""
    ntk_base = answer(answers, "ntk_base")
    mistakes = {
        "base times factor stretches the slowest pair by a little less than the factor: its exponent is "
        "(channels - 2)/channels, so the factor needs the exponent channels/(channels - 2)": 40_000.0,
        "the exponent of the factor is upside down: channels/(channels - 2)": 10_000.0 * 4 ** (126 / 128),
        "channels are counted here, not pairs": 10_000.0 * 4 ** (64 / 62),
    }
    compare("ntk_base(10_000, 4, 128)", ntk_base(10_000.0, 4, 128), 10_000.0 * 4 ** (128 / 126), mistakes)
    compare("ntk_base(500, 8, 16)", ntk_base(500.0, 8, 16), 500.0 * 8 ** (16 / 14))


def slow_pairs_are_counted(answers: ModuleType) -> None:
    """pairs_to_stretch(channels, base, trained) counts the pairs with trained base^(-2k/channels) below 2 pi radians"""
    count = answer(answers, "pairs_to_stretch")
    mistakes = {
        "these are the pairs that do complete a turn; the others are asked for": 46,
        "a turn is 2 pi radians, not 1": 6,
    }
    compare("pairs_to_stretch(128, 10_000, 4096)", count(128, 10_000.0, 4096), 18, mistakes)
    compare("pairs_to_stretch(128, 500_000, 4096)", count(128, 500_000.0, 4096), 32, {"it does not read the base": 18})
    compare("pairs_to_stretch(16, 1000, 64)", count(16, 1000.0, 64), 5)


EXERCISES = (ntk_base_divides_the_slowest_pair_by_the_factor, slow_pairs_are_counted)
