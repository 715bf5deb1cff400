"""The scalar formulas rotate pairs of channels; a logit depends on the angle between them."""

import math

import pytest

from posenc.encoding.channel_pairs import PairsTurned, channels_of_pairs, multiply_pairs


class TwoPairs(PairsTurned):
    """Two pairs with frequencies 1 and 1/2; queries are doubled, and keys are halved."""

    layout = "half"

    def formula_angles(self, position, head=0, length=None):
        return [position, position / 2]

    def formula_sizes(self, position, side, length=None):
        return [2.0 if side == "query" else 0.5] * 2


def test_each_layout_pairs_every_channel_once() -> None:
    assert channels_of_pairs(3, "half") == [(0, 3), (1, 4), (2, 5)]
    assert channels_of_pairs(3, "interleaved") == [(0, 1), (2, 3), (4, 5)]


def test_a_pair_is_multiplied_as_a_complex_number_and_the_other_channels_pass() -> None:
    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert multiply_pairs(x, [1j, 2], [(0, 3), (1, 2)]) == [-4.0, 4.0, 6.0, 1.0, 5.0]
    assert x == [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(ValueError, match="shorter"):
        multiply_pairs(x, [1j], [(0, 3), (1, 2)])


def test_a_quarter_turn_takes_the_first_channel_of_a_pair_to_the_second() -> None:
    query = TwoPairs().formula_query([1.0, 0.0, 0.0, 0.0, 7.0], math.pi / 2)
    assert query == pytest.approx([0.0, 0.0, 2.0, 0.0, 7.0], abs=1e-15)
    assert TwoPairs().formula_key([1.0, 0.0, 0.0, 0.0, 7.0], math.pi / 2) == pytest.approx([0, 0, 0.5, 0, 7], abs=1e-15)


def test_a_logit_is_the_product_of_what_both_are_turned_to() -> None:
    q, k = [0.3, -1.2, 0.7, 2.0, -0.4], [1.1, 0.2, -0.6, 0.9, 3.0]
    vectors = TwoPairs().formula_query(q, 5.0), TwoPairs().formula_key(k, 2.5)
    expected = 0.5 * sum(a * b for a, b in zip(*vectors, strict=True))
    assert TwoPairs().formula_logit(q, k, 5.0, 2.5, 0, 0.5) == pytest.approx(expected, rel=1e-14)
