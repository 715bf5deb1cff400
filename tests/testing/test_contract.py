"""Every encoding of the catalogue (found, not listed), and compositions of them, under every promise."""

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
from posenc.encoding.formulas import Published
from posenc.testing import LONG, SHAPE, Subject, cases, count, in_chunks, on_axes, same, tokens
from posenc.tokens.positions import Positions


def of_other_sizes() -> list[Subject]:
    found = []
    for name in catalogue.names():
        wanted = inspect.signature(catalogue.find(name).__init__).parameters
        if "heads" in wanted:
            # Slopes and tables differ where the number of heads is no power of two, and where it is far from one.
            found += [Subject(name, replace(SHAPE, heads=heads), f"{name} of {heads} heads") for heads in (5, 12)]
        if "dim" in wanted:
            found += [Subject(spec, replace(SHAPE, dim=16), f"{spec} of even width") for spec in variants(name)[-2:]]
    return found


SIZES = [
    testing.says_what_the_paper_says,
    testing.evaluators_and_kernels_agree,
    testing.a_cache_changes_nothing,
    testing.the_spec_round_trips,
    testing.half_precision_stays_near_double,
]
"""What other sizes than the default could break; the other promises are held at the default size."""


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

ALONE = [Subject(variants(name)[0]) for name in catalogue.names()]
PLAIN = [*ALONE, *COMPOSITIONS]
"""Every encoding as it comes."""

OTHER_NUMBERS = [Subject(spec) for name in catalogue.names() for spec in variants(name)[1:2]]
"""Every encoding with all its numbers changed."""

CHOICES = [Subject(spec) for name in catalogue.names() for spec in variants(name)[2:]]
"""Every other choice that an encoding has, one at a time."""

SUBJECTS = [*PLAIN, *OTHER_NUMBERS]

DEAR = [testing.compiles_to_one_graph, testing.every_way_of_running_is_served]
"""What takes most of the time, and depends on the kind of evaluator alone."""

OF_NUMBERS = [testing.says_what_the_paper_says, testing.the_spec_round_trips]
"""What a number that is forgotten, or read as another, would break."""

OF_SUMS = [
    testing.a_forward_pass_works,
    testing.says_what_the_paper_says,
    testing.evaluators_and_kernels_agree,
    testing.a_cache_changes_nothing,
    testing.left_padding_changes_nothing,
    testing.packing_changes_nothing,
]
"""What two encodings that are each right could break together."""

EACH_DAY = ["alibi", "forgetting", "learned", "rotary", "shaw", "rotary + alibi"]
"""The usual kinds of evaluator, and a sum: a third of these is compiled in every run. Others take long."""


def all_but(promises: list[Callable[[Subject], None]]) -> list[Callable[[Subject], None]]:
    return [promise for promise in testing.PROMISES if promise not in promises]


SHARED = [
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
"""What a third of the encodings is held to in every run besides the usual ones, and on another day another third."""

# In every run; the rest by --all.
DAILY = [subject for subject in PLAIN if subject.name in EACH_DAY]
LATER = [subject for subject in PLAIN if subject not in DAILY]
OTHERS = [subject for subject in ALONE if subject not in DAILY]
TODAY = OTHERS[THIRD::3]
SUMS = [subject for subject in COMPOSITIONS if subject not in DAILY]
FAST = cases(DAILY, all_but(DEAR)) + cases(OTHERS, all_but([*DEAR, *SHARED])) + cases(SUMS, OF_SUMS)
FAST += cases(DAILY[THIRD::3], DEAR) + cases(TODAY, SHARED) + cases(OTHER_NUMBERS[THIRD::3], OF_NUMBERS)
SLOW = (
    cases(LATER, DEAR)
    + cases([subject for subject in DAILY if subject not in DAILY[THIRD::3]], DEAR)
    + cases([subject for subject in OTHERS if subject not in TODAY], SHARED)
    + cases(SUMS, all_but([*OF_SUMS, *DEAR]))
    + cases(OTHER_NUMBERS, testing.PROMISES)
    + cases(CHOICES, testing.PROMISES)
    + cases(of_other_sizes(), SIZES)
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
PAIRS = [f"{one} + {other}" for one, other in itertools.combinations(NAMES, 2)]
PAIRS += [f"on({name}, heads=(0, {SHAPE.heads - 1}))" for name in NAMES]

SHARES = 480
"""Every run holds one share of the pairs to their promises, and on another day another one."""


def test_what_two_encodings_make_together_keeps_its_promises() -> None:
    today = date.today().toordinal() % SHARES
    for spec in PAIRS[today::SHARES]:
        together(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", PAIRS)
def test_every_pair_of_encodings_keeps_its_promises(spec: str) -> None:
    if not together(spec):
        pytest.skip("this pair has no meaning")


def together(spec: str) -> bool:
    """Hold a pair to its promises; whether it has a meaning."""
    try:
        net = Subject(spec).net()
        net(tokens(Subject(spec), 2), on_axes(count(2), net.axes))
    except ValueError:
        # Two rules of attention, axes that differ, a door that knows no heads: each is refused in a sentence.
        return False
    for promise in OF_SUMS:
        try:
            promise(Subject(spec))
        except unittest.SkipTest:
            continue
        except AssertionError as error:
            raise AssertionError(f"{spec}: {error}") from error
    return True


def test_an_encoding_fills_all_of_its_parameters_anew() -> None:
    """What stands on meta is made real by to_empty, and filled by reset_parameters of the encoding alone."""
    for subject in [*SUBJECTS, *CHOICES]:
        for encoding in subject.encodings():
            # What an encoding wraps fills its own.
            own = {name: p for name, p in encoding.named_parameters() if not name.startswith("encoding.")}
            with torch.no_grad():
                for parameter in own.values():
                    parameter.fill_(123)
            if own:
                encoding.reset_parameters()
            left = [name for name, parameter in own.items() if bool((parameter == 123).any())]
            assert not left, f"{encoding}: {left}"


@pytest.mark.parametrize("door", ["query", "key"])
def test_the_formulas_of_queries_and_keys_are_what_the_doors_make_of_them(door: str) -> None:
    """A bias beside an encoding reads them so; its own logit may be written down without them."""
    compared = set()
    for spec in (spec for name in catalogue.names() for spec in variants(name)):
        encoding = Subject(spec).net().encodings[0]
        formula = getattr(encoding, f"formula_{door}")
        if "turn" not in encoding.doors or formula.__func__ is getattr(Published, f"formula_{door}"):
            continue
        coords = torch.randint(1, 4, (1, 3, encoding.axes or 1)).cumsum(1)
        x = torch.randn(1, SHAPE.heads, 3, SHAPE.head_dim, dtype=torch.float64)
        turned = encoding.turn(x, Positions(coords, torch.arange(3)[None]).with_horizon(20), door)[0]
        for head, vectors in enumerate(x[0].tolist()):
            for token, (vector, place) in enumerate(zip(vectors, coords[0].tolist(), strict=True)):
                if encoding.turns_when_attending:
                    with pytest.raises(NotImplementedError):
                        formula(vector, place[0], head)
                    continue
                found = formula(vector, place[0] if len(place) == 1 else tuple(place), head)
                assert found == pytest.approx(turned[head, token].tolist(), rel=1e-11, abs=1e-12), spec
                compared.add(type(encoding).spec_name)
    assert len(compared) >= 8


def test_variants_are_drawn_from_the_constructor() -> None:
    found = " ".join(variants("rotary"))
    assert all(word in found for word in ("layout=interleaved", "partial=0.67", *schedules.SCHEDULES))
    assert variants("none") == ["none"]
    assert variants("rerope")[:2] == ["rerope(rotary)", "rerope(rotary, window=8)"]


drawn = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
any_subject = st.sampled_from(SUBJECTS)
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@given(any_subject, st.lists(st.integers(1, 8), min_size=1, max_size=4), st.sampled_from([None, 0, 3]), st.booleans())
@drawn
def test_any_cut_of_a_cache_changes_nothing(subject: Subject, cuts: list[int], spare: int | None, padded: bool) -> None:
    T = min(sum(cuts), subject.shape.max_len)
    cuts = [n for i, n in enumerate(cuts) if sum(cuts[: i + 1]) <= T] or [T]
    T = sum(cuts)
    at = count(T)
    if padded and T > 2:
        at = Positions.padded(torch.arange(T).expand(2, -1) >= torch.tensor([[0], [T // 2]])).with_horizon(LONG)
    net, x = subject.net(), tokens(subject, T)
    cache = GrowingCache if spare is None else lambda: SlotCache(T + spare)
    got, expected = in_chunks(net, x, at, cuts, masks.causal(), cache), net(x, at, masks.causal())
    real = (at.order >= 0).expand(2, -1)
    same(got[real], expected[real], f"{subject} cut {cuts}")


@given(any_subject, st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=3), st.booleans())
@drawn
def test_any_padding_changes_nothing(subject: Subject, rows: list[list[bool]], causal: bool) -> None:
    present = torch.tensor(rows)
    net, mask = subject.net(), masks.Mask(causal=causal)
    x = tokens(subject, 7, batch=len(rows))
    together = net(x, Positions.padded(present).with_horizon(LONG), mask)
    for row, real in enumerate(present):
        if real.any():
            alone = net(x[row : row + 1, real], count(int(real.sum())), mask)
            same(together[row : row + 1, real], alone, f"{subject}, row {row}")
    assert together.isfinite().all()


@given(any_subject, lengths, st.booleans())
@drawn
def test_any_packing_changes_nothing(subject: Subject, documents: list[int], causal: bool) -> None:
    net, mask = subject.net(), masks.Mask(causal=causal)
    x = tokens(subject, sum(documents))
    packed = net(x, Positions.packed(documents).with_horizon(LONG), mask)
    start = 0
    for n in documents:
        piece = slice(start, start + n)
        same(packed[:, piece], net(x[:, piece], count(n), mask), f"{subject}, tokens {start} to {start + n}")
        start += n
