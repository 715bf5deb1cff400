"""Every encoding of the catalogue, and compositions of them, keep every promise."""

import inspect
import itertools
import unittest
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import THIRD, variants

from posenc import catalogue, masks, schedules, testing
from posenc.cache import GrowingCache, SlotCache
from posenc.encoding.formulas import Formulas
from posenc.testing import LONG, SHAPE, Subject, agree, arange, cases, embeddings, on_axes, run_chunks
from posenc.tokens.positions import Positions


def other_sizes() -> list[Subject]:
    subjects = []
    for name in catalogue.names():
        parameters = inspect.signature(catalogue.find(name).__init__).parameters
        if "heads" in parameters:
            # Slopes and tables differ where the number of heads is no power of two, or far from a power of two.
            subjects += [Subject(name, replace(SHAPE, heads=heads), f"{name} of {heads} heads") for heads in (5, 12)]
        if "dim" in parameters:
            subjects += [Subject(spec, replace(SHAPE, dim=16), f"{spec} of even width") for spec in variants(name)[-2:]]
    return subjects


SIZE_PROMISES = [
    testing.says_what_the_paper_says,
    testing.evaluators_and_kernels_agree,
    testing.a_cache_changes_nothing,
    testing.the_spec_round_trips,
    testing.half_precision_stays_near_double,
]
"""Promises that other sizes could break; the others are checked at the default size."""


COMPOSITIONS = [
    Subject("rotary + alibi"),
    Subject("learned + shaw(max_distance=5)"),
    Subject("sinusoidal + t5_bias(buckets=8, max_distance=9) + rotary"),
    Subject("on(rotary, heads=(0, 2))"),
    Subject("on(alibi, heads=(1,)) + on(rotary(base=100), heads=(0, 2))"),
    Subject(("rotary", "t5_bias(buckets=8, max_distance=9)")),
    Subject("rotary(schedule=dynamic_ntk(factor=2))"),
    Subject("rotary + forgetting + step_temperature(interval=7)"),
    Subject("rerope(rotary + alibi, window=5, leak=2.5)"),
]

SINGLE = [Subject(variants(name)[0]) for name in catalogue.names()]
PLAIN = [*SINGLE, *COMPOSITIONS]
"""Every encoding with its defaults."""

OTHER_NUMBERS = [Subject(spec) for name in catalogue.names() for spec in variants(name)[1:2]]
"""Every encoding with all its numbers changed."""

OTHER_CHOICES = [Subject(spec) for name in catalogue.names() for spec in variants(name)[2:]]
"""Every other choice of an option, one at a time."""

SUBJECTS = [*PLAIN, *OTHER_NUMBERS]

COSTLY = [testing.compiles_to_one_graph, testing.every_way_of_running_is_served]
"""The slowest promises, which depend on the kind of evaluator alone."""

NUMERIC = [testing.says_what_the_paper_says, testing.the_spec_round_trips]
"""Promises that an ignored or misread number would break."""

ADDITIVE = [
    testing.a_forward_pass_works,
    testing.says_what_the_paper_says,
    testing.evaluators_and_kernels_agree,
    testing.a_cache_changes_nothing,
    testing.left_padding_changes_nothing,
    testing.packing_changes_nothing,
]
"""Promises that two correct encodings could break together."""

DAILY_SPECS = ["alibi", "forgetting", "learned", "rotary", "shaw", "rotary + alibi"]
"""The usual kinds of evaluator, and a sum: every run compiles a third of these."""


def all_but(promises: list[Callable[[Subject], None]]) -> list[Callable[[Subject], None]]:
    return [promise for promise in testing.PROMISES if promise not in promises]


ROTATING = [
    testing.says_what_the_paper_says,
    testing.evaluators_and_kernels_agree,
    testing.a_cache_changes_nothing,
    testing.half_precision_stays_near_double,
    testing.the_future_is_invisible,
    testing.left_padding_changes_nothing,
    testing.packing_changes_nothing,
    testing.a_moved_key_is_the_key_of_its_new_place,
    testing.the_order_of_calls_changes_nothing,
]
"""Promises that are checked for today's third of the other encodings."""

# These encodings run every time; the others run by --all.
DAILY = [subject for subject in PLAIN if subject.name in DAILY_SPECS]
LATER = [subject for subject in PLAIN if subject not in DAILY]
REST = [subject for subject in SINGLE if subject not in DAILY]
TODAY = REST[THIRD::3]
SUMS = [subject for subject in COMPOSITIONS if subject not in DAILY]
FAST = cases(DAILY, all_but(COSTLY)) + cases(REST, all_but([*COSTLY, *ROTATING])) + cases(SUMS, ADDITIVE)
FAST += cases(DAILY[THIRD::3], COSTLY) + cases(TODAY, ROTATING) + cases(OTHER_NUMBERS[THIRD::3], NUMERIC)
SLOW = (
    cases(LATER, COSTLY)
    + cases([subject for subject in DAILY if subject not in DAILY[THIRD::3]], COSTLY)
    + cases([subject for subject in REST if subject not in TODAY], ROTATING)
    + cases(SUMS, all_but([*ADDITIVE, *COSTLY]))
    + cases(OTHER_NUMBERS, testing.PROMISES)
    + cases(OTHER_CHOICES, testing.PROMISES)
    + cases(other_sizes(), SIZE_PROMISES)
)


@pytest.mark.parametrize("promise, subject", FAST)
def test_an_encoding_keeps_its_promises(promise: Callable[[Subject], None], subject: Subject) -> None:
    promise(subject)


@pytest.mark.slow
@pytest.mark.parametrize("promise, subject", SLOW)
def test_every_choice_and_size_of_an_encoding_keeps_its_promises(
    promise: Callable[[Subject], None], subject: Subject
) -> None:
    promise(subject)


NAMES = catalogue.names()
PAIRS = [f"{a} + {b}" for a, b in itertools.combinations(NAMES, 2)]
PAIRS += [f"on({name}, heads=(0, {SHAPE.heads - 1}))" for name in NAMES]

SHARES = 480
"""Every run checks today's share of the pairs."""


def test_what_two_encodings_make_together_keeps_its_promises() -> None:
    today = date.today().toordinal() % SHARES
    for spec in PAIRS[today::SHARES]:
        check_pair(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", PAIRS)
def test_every_pair_of_encodings_keeps_its_promises(spec: str) -> None:
    if not check_pair(spec):
        pytest.skip("this pair cannot be built or called")


def check_pair(spec: str) -> bool:
    """Check the promises of a pair; return whether it can be built and called."""
    try:
        net = Subject(spec).net()
        net(embeddings(Subject(spec), 2), on_axes(arange(2), net.axes))
    except ValueError:
        # Two rules of attention, different axes, or a door without heads: each raises an error.
        return False
    for promise in ADDITIVE:
        try:
            promise(Subject(spec))
        except unittest.SkipTest:
            continue
        except AssertionError as error:
            raise AssertionError(f"{spec}: {error}") from error
    return True


def test_an_encoding_fills_all_of_its_parameters_anew() -> None:
    """to_empty allocates a module from the meta device, and only reset_parameters fills it."""
    for subject in [*SUBJECTS, *OTHER_CHOICES]:
        for encoding in subject.encodings():
            # A wrapped encoding fills its own parameters.
            parameters = {name: p for name, p in encoding.named_parameters() if not name.startswith("encoding.")}
            with torch.no_grad():
                for parameter in parameters.values():
                    parameter.fill_(123)
            if parameters:
                encoding.reset_parameters()
            unset = [name for name, parameter in parameters.items() if bool((parameter == 123).any())]
            assert not unset, f"{encoding}: {unset}"


@pytest.mark.parametrize("door", ["query", "key"])
def test_the_formulas_of_queries_and_keys_are_what_the_doors_make_of_them(door: str) -> None:
    """A bias in a sum reads these formulas, which the encoding's own logit formula may not use."""
    checked_names = set()
    for spec in (spec for name in catalogue.names() for spec in variants(name)):
        encoding = Subject(spec).net().encodings[0]
        formula = getattr(encoding, f"formula_{door}")
        if "turn" not in encoding.doors or formula.__func__ is getattr(Formulas, f"formula_{door}"):
            continue
        coords = torch.randint(1, 4, (1, 3, encoding.axes or 1)).cumsum(1)
        x = torch.randn(1, SHAPE.heads, 3, SHAPE.head_dim, dtype=torch.float64)
        rotated = encoding.turn(x, Positions(coords, torch.arange(3)[None]).with_horizon(20), door)[0]
        for head, vectors in enumerate(x[0].tolist()):
            for token, (vector, place) in enumerate(zip(vectors, coords[0].tolist(), strict=True)):
                if encoding.turns_when_attending:
                    with pytest.raises(NotImplementedError):
                        formula(vector, place[0], head)
                    continue
                actual = formula(vector, place[0] if len(place) == 1 else tuple(place), head)
                assert actual == pytest.approx(rotated[head, token].tolist(), rel=1e-11, abs=1e-12), spec
                checked_names.add(type(encoding).spec_name)
    assert len(checked_names) >= 8


def test_variants_are_drawn_from_the_constructor() -> None:
    specs = " ".join(variants("rotary"))
    assert all(word in specs for word in ("layout=interleaved", "partial=0.67", *schedules.SCHEDULES))
    assert variants("none") == ["none"]
    assert variants("rerope")[:2] == ["rerope(rotary)", "rerope(rotary, window=8)"]


random_cases = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
any_subject = st.sampled_from(SUBJECTS)
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@given(any_subject, st.lists(st.integers(1, 8), min_size=1, max_size=4), st.sampled_from([None, 0, 3]), st.booleans())
@random_cases
def test_any_cut_of_a_cache_changes_nothing(subject: Subject, cuts: list[int], spare: int | None, padded: bool) -> None:
    T = min(sum(cuts), subject.shape.max_len)
    cuts = [n for i, n in enumerate(cuts) if sum(cuts[: i + 1]) <= T] or [T]
    T = sum(cuts)
    at = arange(T)
    if padded and T > 2:
        at = Positions.padded(torch.arange(T).expand(2, -1) >= torch.tensor([[0], [T // 2]])).with_horizon(LONG)
    net, x = subject.net(), embeddings(subject, T)
    cache = GrowingCache if spare is None else lambda: SlotCache(T + spare)
    actual, expected = run_chunks(net, x, at, cuts, masks.causal(), cache), net(x, at, masks.causal())
    real = (at.order >= 0).expand(2, -1)
    agree(actual[real], expected[real], f"{subject} cut {cuts}")


@given(any_subject, st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=3), st.booleans())
@random_cases
def test_any_padding_changes_nothing(subject: Subject, rows: list[list[bool]], causal: bool) -> None:
    present = torch.tensor(rows)
    net, mask = subject.net(), masks.Mask(causal=causal)
    x = embeddings(subject, 7, batch=len(rows))
    batch_output = net(x, Positions.padded(present).with_horizon(LONG), mask)
    for row, real in enumerate(present):
        if real.any():
            alone = net(x[row : row + 1, real], arange(int(real.sum())), mask)
            agree(batch_output[row : row + 1, real], alone, f"{subject}, row {row}")
    assert batch_output.isfinite().all()


@given(any_subject, lengths, st.booleans())
@random_cases
def test_any_packing_changes_nothing(subject: Subject, documents: list[int], causal: bool) -> None:
    net, mask = subject.net(), masks.Mask(causal=causal)
    x = embeddings(subject, sum(documents))
    packed = net(x, Positions.packed(documents).with_horizon(LONG), mask)
    start = 0
    for n in documents:
        piece = slice(start, start + n)
        agree(packed[:, piece], net(x[:, piece], arange(n), mask), f"{subject}, tokens {start} to {start + n}")
        start += n
