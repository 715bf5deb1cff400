"""All promises, in the order in which they are checked."""

from collections.abc import Callable

from posenc.testing.promises.basics import a_forward_pass_works
from posenc.testing.promises.interface import (
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
    a_sum_is_served_as_its_parts_are,
    evaluators_and_kernels_agree,
    every_parameter_learns,
    gradients_are_those_of_small_steps,
    grouped_query_heads_agree,
    half_precision_stays_near_double,
    says_what_the_paper_says,
)
from posenc.testing.promises.ways_of_running import (
    compiles_to_one_graph,
    every_way_of_running_is_served,
)

PROMISES: tuple[Callable[..., None], ...] = (
    a_forward_pass_works,
    says_what_the_paper_says,
    evaluators_and_kernels_agree,
    a_sum_is_served_as_its_parts_are,
    a_cache_changes_nothing,
    a_moved_key_is_the_key_of_its_new_place,
    left_padding_changes_nothing,
    packing_changes_nothing,
    a_neighbour_in_the_batch_changes_nothing,
    the_future_is_invisible,
    the_order_of_calls_changes_nothing,
    others_of_its_kind_change_nothing,
    half_precision_stays_near_double,
    casts_and_copies_change_nothing,
    compiles_to_one_graph,
    every_way_of_running_is_served,
    gradients_are_those_of_small_steps,
    every_parameter_learns,
    the_spec_round_trips,
    bad_arguments_get_a_clear_error,
    has_a_source,
    nothing_given_is_changed,
    grouped_query_heads_agree,
)
"""All promises; the name of each is the sentence."""
