"""The contract of every positional encoding, as tests that also run on an encoding of your own.

Each test is a promise: a function whose name is a sentence. It takes a Subject (or what makes one: a spec, an Encoding
class, a factory, a tuple of specs for the layers of a stack) and raises AssertionError if the sentence is not true. A
test of your own encoding is two lines:

    @pytest.mark.parametrize("promise", posenc.testing.PROMISES)
    def test_mine(promise): promise(Mine)

A promise that does not apply to a subject raises NoMeaning. One for which the encoding declares a gap raises KnownGap.
Both give the reason and are unittest's SkipTest, so test reports list them. A declared gap that has been closed fails.
"""

from posenc.model.seeding import local_seed
from posenc.testing.comparisons import agree, agree_in_angle, agree_nearly
from posenc.testing.contract import find_promise, promise
from posenc.testing.oracles import net_by_formula
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
    arange,
    embeddings,
    far_enough,
    make,
    on_axes,
    run_chunks,
    singles,
    some_positions,
    with_gradients,
)
from posenc.testing.variants import siblings, variants
from posenc.verdicts import KnownGap, NoMeaning, StaleGap, Verdict, describe, promise_name, verdict_counts
