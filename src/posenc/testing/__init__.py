"""The contract every positional encoding owes, as promises that anybody can hold their own encoding to.

A promise is a function whose name is the sentence. It takes a Subject (or what makes one: a spec, an Encoding class, a
factory, a tuple of specs for the layers of a stack) and raises AssertionError where the sentence is not true. A test of
your own encoding is two lines:

    @pytest.mark.parametrize("promise", posenc.testing.PROMISES)
    def test_mine(promise): promise(Mine)

Where a promise has no meaning for a subject it raises NoMeaning, and where the encoding declares a gap KnownGap, each
with its reason: both are unittest's SkipTest, so a test report names them. A declared gap that is none any more fails.
"""

from posenc.seeding import seeded
from posenc.testing.comparisons import alike, near, same
from posenc.testing.contract import promise, sentence
from posenc.testing.oracles import by_formula
from posenc.testing.promises import *
from posenc.testing.report import ADVICE, cases, check, verdicts
from posenc.testing.subjects import (
    FAR,
    LONG,
    SHAPE,
    TOKENS,
    Factory,
    Net,
    Source,
    Subject,
    count,
    far_enough,
    far_positions,
    in_chunks,
    inside,
    make,
    on_axes,
    some_positions,
    tokens,
    with_gradients,
)
from posenc.testing.variants import kin, variants
from posenc.verdicts import KnownGap, NoMeaning, StaleGap, Verdict, describe, name_of, total
