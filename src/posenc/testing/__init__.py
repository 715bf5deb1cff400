"""The contract every positional encoding owes, as promises that anybody can hold their own encoding to.

A promise is a function whose name is the sentence. It takes a Subject (or what makes one: a spec, an Encoding class, a
factory, a tuple of specs for the layers of a stack) and raises AssertionError where the sentence is not true. A test of
your own encoding is two lines:

    @pytest.mark.parametrize("promise", posenc.testing.PROMISES)
    def test_mine(promise): promise(Mine)

Where a promise has no meaning for a subject it raises NoMeaning, and where the encoding declares a gap KnownGap, each
with its reason: both are unittest's SkipTest, so a test report names them. A declared gap that is none any more fails.
"""

from posenc.model.seeding import seeded
from posenc.testing.comparisons import alike, near, same
from posenc.testing.contract import promise, sentence
from posenc.testing.oracles import by_formula
from posenc.testing.promises.interface import (
    a_forward_pass_works,
    bad_arguments_get_a_clear_error,
    has_a_source,
    the_spec_round_trips,
)
from posenc.testing.promises.moves import a_moved_key_is_the_key_of_its_new_place
from posenc.testing.promises.sequences import (
    a_cache_changes_nothing,
    a_neighbour_in_the_batch_changes_nothing,
    left_padding_changes_nothing,
    packing_changes_nothing,
    the_future_is_invisible,
)
from posenc.testing.promises.side_effects import (
    casts_and_copies_change_nothing,
    nothing_given_is_changed,
    others_of_its_kind_change_nothing,
    the_order_of_calls_changes_nothing,
)
from posenc.testing.promises.values import (
    evaluators_and_kernels_agree,
    every_parameter_learns,
    gradients_are_those_of_small_steps,
    grouped_query_heads_agree,
    half_precision_stays_near_double,
    says_what_the_paper_says,
)
from posenc.testing.promises.ways_of_running import compiles_to_one_graph, every_way_of_running_is_served
from posenc.testing.report import ADVICE, PROMISES, cases, check, verdicts
from posenc.testing.subjects import (
    FAR,
    LONG,
    SHAPE,
    TOKENS,
    Net,
    Source,
    Subject,
    count,
    far_enough,
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
