"""Runs promises on an encoding: the verdicts, advice for each failure, and parameters for pytest."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from posenc.testing.contract import SENTENCES, declared_gaps, find_promise, promise_name
from posenc.testing.promises.interface import a_forward_pass_works
from posenc.testing.subjects import Source, Subject
from posenc.verdicts import Checker, Verdict

ADVICE = {
    "a_forward_pass_works": "posenc.Encoding says what each door is given and has to give; the others wait for this",
    "says_what_the_paper_says": "compare the doors with your formula_... methods for one query and key: one is wrong",
    "evaluators_and_kernels_agree": "a closure must be elementwise in its indices, and by_distance in its distances",
    "a_cache_changes_nothing": "read at.coords and at.order, never a tensor's length; what neighbours say: remember()",
    "a_moved_key_is_the_key_of_its_new_place": "moved(k, before, after) turns by the difference, without a temperature",
    "left_padding_changes_nothing": "read at.coords and at.order (-1 is padding), never the index in the tensor",
    "packing_changes_nothing": "coordinates start again with each document: do not count on, and sum with sums_of",
    "a_neighbour_in_the_batch_changes_nothing": "compute each row from its own positions and length: no batch maximum",
    "the_future_is_invisible": "nothing of a token may be computed from later ones: sum by order, not over the tensor",
    "the_order_of_calls_changes_nothing": "keep nothing between calls; ask for tables through `self.once` alone",
    "others_of_its_kind_change_nothing": "ask for tables through `self.once`, and write no key by hand",
    "half_precision_stays_near_double": "take angles in float64 and biases in float32, and round once at the end",
    "casts_and_copies_change_nothing": "keep no buffers: compute tables from Python numbers; only parameters are state",
    "compiles_to_one_graph": "no .item(), and no Python decision that reads a tensor",
    "every_way_of_running_is_served": "read no tensor's data, give new tensors a device, allow a batch of no rows",
    "gradients_are_those_of_small_steps": "a backward pass of your own, or a detach(), is not the slope of the forward",
    "every_parameter_learns": "a parameter that is never read, or is multiplied by zero, does not learn",
    "the_spec_round_trips": "keep every constructor argument on self under its own name",
    "bad_arguments_get_a_clear_error": "refuse what does not fit with a ValueError that names it and what was expected",
    "has_a_source": "give the class a `source`, and begin its docstring with a sentence about the idea",
    "nothing_given_is_changed": "no operation in place on what is given, and a torch.Generator for what is random",
    "grouped_query_heads_agree": "keys may have fewer heads than queries: repeat them for their groups",
}
"""Advice for each promise that fails, in the order of the checks."""

PROMISES: tuple[Callable[..., None], ...] = tuple(SENTENCES[name] for name in ADVICE)
"""All promises; the name of each is the sentence."""


def check(subject: "Subject | Source", promises: Iterable[str | Callable[..., None]] | None = None) -> list[Verdict]:
    """Return the verdict of each promise (default: all) on a subject; a broken promise raises nothing.

    promises  promises or their names

    If not even a forward pass works, this is the only verdict.

    Raises ValueError for an unknown promise, and for a spec, class or factory that builds nothing.

    >>> [verdict.word for verdict in check("alibi", ["has_a_source", "every_parameter_learns"])]
    ['kept', 'no meaning']
    """
    return list(verdicts(subject, promises))


def verdicts(
    subject: "Subject | Source",
    promises: Iterable[str | Callable[..., None]] | None = None,
    context_of: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[Verdict]:
    """Yield the verdicts of `check`, each as soon as it is known.

    context_of  maps the name of a promise to a context manager that is active while it runs
    """
    subject = Subject.from_source(subject)
    selection = PROMISES if promises is None else [find_promise(promise) for promise in promises]
    modules = {type(encoding).__module__ for encoding in subject.encodings()}
    return Checker(subject, subject.name, modules, ADVICE, declared_gaps(subject)).verdicts(
        a_forward_pass_works, selection, context_of
    )


def cases(
    subjects: Iterable["Subject | Source"], promises: Iterable[str | Callable[..., None]] | None = None
) -> list[Any]:
    """Return every promise with every subject as parameters for pytest.mark.parametrize("promise, subject", ...).

    Nothing is built yet, so that a broken encoding fails its tests and not their collection.
    """
    import pytest

    selection = PROMISES if promises is None else [find_promise(promise) for promise in promises]
    return [
        pytest.param(test, subject, id=f"{promise_name(test)}-{subject}")
        for subject in map(Subject.from_source, subjects)
        for test in selection
    ]
