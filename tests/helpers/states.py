"""A state machine: encodings, copies, casts and caches in random order, each step compared with fresh objects.

The promises call an encoding a few times; state that outlives a call can break in an unexpected order of calls.
Hypothesis draws such orders, and shortens a failing one.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor

from posenc import masks
from posenc.cache import Cache
from posenc.encoding.base import Encoding
from posenc.model.seeding import local_seed
from posenc.testing import comparisons, subjects
from posenc.testing.subjects import LONG, TOKENS, Net, Source, Subject, on_axes, with_gradients
from posenc.testing.variants import siblings
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import KEPT_WINDOWS, MODULE_ATTRIBUTES

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gradients": nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}
SAME_CALL = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.05}
"""Largest difference from the same call of fresh objects, which computes the same numbers in the same order."""

ONE_PASS = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference between decoding with a cache and one pass over all tokens of a row."""

WINDOW, CHUNK, MAX_TOKENS = 3, 4, 18
SLOTS: dict[str, dict[str, Any]] = {
    "growing": {},
    "static": {"slots": MAX_TOKENS},
    "rolling": {"slots": WINDOW + CHUNK - 1, "rolling": True},
}
PADDINGS: dict[str, Callable[[int], list[bool]]] = {
    "none": lambda tokens: [True] * tokens,
    "left": lambda tokens: [place >= 2 for place in range(tokens)],
    "right": lambda tokens: [place < tokens - 2 for place in range(tokens)],
    "inside": lambda tokens: [place % 2 == 0 for place in range(tokens)],
    "all": lambda tokens: [False] * tokens,
}
"""The tokens of a chunk that the first row has; the other rows have all of them."""

ROW_CHANGES = ("crop", "crop apart", "reorder", "another", "nothing")
"""Operations on rows before the next tokens."""


def layout(kind: int) -> Positions:
    """Return positions of nine tokens, as new objects at each call."""
    left, right = torch.ones(2, TOKENS), torch.ones(2, TOKENS)
    left[0, :4], right[1, 5:] = 0, 0
    rows = torch.stack((torch.arange(TOKENS), torch.arange(TOKENS).flip(0)))
    makers = (
        lambda: Positions.count(TOKENS),
        lambda: Positions.count(TOKENS, 5),
        lambda: Positions.padded(left),
        lambda: Positions.padded(right),
        lambda: Positions.packed([4, 5]),
        lambda: Positions.of(rows),
        lambda: Positions.of(torch.arange(TOKENS).double() / 2),
    )
    return makers[kind % len(makers)]().with_horizon(LONG)


PLACES = 7
MASKS = (masks.causal(), masks.bidirectional(), masks.window(3), masks.prefix(4))


@dataclass
class Live:
    """A network in use, and a network that gets the same changes but no calls."""

    net: Net
    pristine: Net

    @classmethod
    def from_subject(cls, subject: Subject) -> "Live":
        return cls(subject.net(), subject.net())

    def fresh(self) -> Net:
        """Return new objects that compute the same, without cached tables."""
        return copy.deepcopy(self.pristine).without_kept_tables()

    def copy(self) -> "Live":
        return Live(copy.deepcopy(self.net), copy.deepcopy(self.pristine))

    def do(self, change: Callable[[Net], Any]) -> None:
        change(self.net)
        change(self.pristine)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.net.parameters()).dtype


@dataclass
class Talk:
    """Rows that grow with a KV cache: the network, the cache, and the inputs of each row [n, dim]."""

    live: Live
    kind: str
    rows: list[Tensor]
    cache: Cache = field(init=False)

    def __post_init__(self) -> None:
        self.begin(len(self.rows))

    def begin(self, rows: int) -> None:
        """Begin again with an empty cache."""
        self.cache = Cache(len(self.live.net.layers), **SLOTS[self.kind])
        self.rows = [torch.zeros(0, self.live.net.shape.dim)] * rows

    @property
    def mask(self) -> Mask:
        return masks.window(WINDOW) if self.kind == "rolling" else masks.causal()

    def crop(self, fewer: int, *, apart: bool) -> None:
        """Remove the last tokens; with `apart`, in every other row only."""
        lengths = [len(row) for row in self.rows]
        shortest = max(0, min(lengths) - fewer)
        limits = [n if b % 2 else max(0, n - fewer) for b, n in enumerate(lengths)] if apart else [shortest]
        try:
            self.cache.crop(torch.tensor(limits) if apart else shortest)
        except ValueError:
            assert self.kind == "rolling"
            self.begin(len(self.rows))
            return
        self.rows = [row[:limit] for row, limit in zip(self.rows, limits * (1 if apart else len(lengths)), strict=True)]

    def reorder(self, indices: list[int]) -> None:
        if self.cache.held is not None:
            self.cache.rows(torch.tensor(indices))
            self.rows = [self.rows[row] for row in indices]

    def copy(self, *, deep: bool) -> "Talk":
        """Return a copy that grows independently."""
        twin = copy.copy(self)
        twin.cache = copy.deepcopy(self.cache) if deep else copy.copy(self.cache)
        twin.rows = list(self.rows)
        return twin


def result(call: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor] | str:
    """Return the result of a call, or its error's message."""
    try:
        return call()
    except ValueError as reason:
        return str(reason)


def assert_same(
    actual: dict[str, Tensor] | str, expected: dict[str, Tensor] | str, label: str, dtype: torch.dtype
) -> None:
    """Raise AssertionError unless both have the same tensors, or the same message."""
    if isinstance(actual, str) or isinstance(expected, str):
        assert actual == expected, f"{label}: gave '{actual}', and fresh objects gave '{expected}'"
        return
    for name, value in expected.items():
        comparisons.agree(actual[name], value, f"{name} of {label}", SAME_CALL[dtype])


def state_machine(source: "Subject | Source") -> type[RuleBasedStateMachine]:
    """Return the state machine of a subject: a spec, an Encoding class, a factory, or a tuple of them.

    unittest and pytest run its `TestCase`. Every rule makes a comparison, so that few steps test much.
    """
    subject = Subject.from_source(source)
    family = [subject, *siblings(subject)]
    relatives = [relative.net() for relative in family]
    alone: dict[tuple[int, int], dict[str, Tensor] | str] = {}
    one_live, one_mode = st.integers(0, 3), st.sampled_from(list(MODES))

    class States(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            # A failure repeats only if no table of the previous run is left.
            KEPT_WINDOWS.clear()
            self.lives: list[Live] = []
            self.talks: list[Talk] = []
            self.positions: dict[tuple[int, int], Positions] = {}
            self.pending: list[tuple[Live, Tensor, Tensor, Tensor]] = []
            self.draw_count = 0

        def random(self, *shape: int) -> Tensor:
            self.draw_count += 1
            source = torch.Generator().manual_seed(self.draw_count)
            return torch.randn(*shape, dtype=torch.float64, generator=source)

        @initialize(relative=st.integers(0, len(family) - 1))
        def begin(self, relative: int) -> None:
            self.lives = [Live.from_subject(subject), Live.from_subject(subject), Live.from_subject(family[relative])]
            self.lives[0].do(lambda net: net.bfloat16())
            self.lives[2].do(lambda net: net.float())
            self.talks = [Talk(self.lives[1], kind, [torch.empty(0)] * 2) for kind in SLOTS]

        # Networks of one kind on shared positions.

        @rule(
            first=one_live,
            place=st.integers(0, PLACES - 1),
            mask=st.sampled_from(MASKS),
            mode=one_mode,
        )
        def call_all(self, first: int, place: int, mask: Mask, mode: str) -> None:
            # Tables cached without gradients must not be reused when gradients are needed.
            for way, index in itertools.product(dict.fromkeys((mode, "gradients")), range(len(self.lives))):
                self.call(self.life(first + index), place, mask, way)

        @rule(place=st.integers(0, PLACES - 1))
        def call_relatives(self, place: int) -> None:
            """Call the subject and its siblings on shared positions."""
            x = torch.linspace(-20, 20, 2 * TOKENS * subject.shape.dim, dtype=torch.float64).sin()
            x = x.view(2, TOKENS, subject.shape.dim)

            def run(net: Net, at: Positions) -> dict[str, Tensor]:
                with torch.no_grad():
                    return {"output": net(x, at, masks.causal())}

            positions: dict[int, Positions] = {}
            for kind, relative in enumerate(relatives):
                net = copy.deepcopy(relative)
                at = positions.setdefault(net.axes, on_axes(layout(place), net.axes))
                actual = result(partial(run, net, at))
                if (kind, place) not in alone:
                    fresh = copy.deepcopy(relative).without_kept_tables()
                    alone[kind, place] = result(partial(run, fresh, layout(place)))
                assert_same(actual, alone[kind, place], str(family[kind]), torch.float64)

        @rule(
            index=one_live,
            change=st.sampled_from(("copy", "cast", "parameters", "data", "another")),
            number=st.integers(0, 20),
            place=st.integers(0, PLACES - 1),
            mode=one_mode,
        )
        def change_one(self, index: int, change: str, number: int, place: int, mode: str) -> None:
            live, mask = self.life(index), MASKS[number % len(MASKS)]
            self.call(live, place, mask, mode)
            if change == "cast":
                dtype = list(SAME_CALL)[number % len(SAME_CALL)]
                self.change(live, lambda net: net.to(dtype))
            elif change in ("parameters", "data"):
                self.move_parameters(live, through_data=change == "data")
            else:
                twin = live.copy() if change == "copy" else Live.from_subject(family[number % len(family)])
                if change == "copy":
                    # Changes of a copy must not change the original.
                    self.move_parameters(twin, through_data=False)
                    self.set_options(twin, number)
                oldest = self.life(index + 1)
                self.lives = [live for live in self.lives if len(self.lives) < 4 or live is not oldest] + [twin]
                self.call(twin, place, mask, mode)
            self.call(live, place, mask, mode)

        def move_parameters(self, live: Live, *, through_data: bool) -> None:
            self.draw_count += 1
            seed = self.draw_count

            def move(net: Net) -> None:
                with local_seed(seed), torch.no_grad():
                    for parameter in net.encodings.parameters():
                        step = 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
                        if through_data:
                            parameter.data = parameter.data + step.to(parameter)
                        else:
                            parameter += step.to(parameter)

            self.change(live, move)

        @rule(index=one_live, number=st.integers(0, 20), place=st.integers(0, PLACES - 1), mode=one_mode)
        def set_one(self, index: int, number: int, place: int, mode: str) -> None:
            live, mask = self.life(index), MASKS[number % len(MASKS)]
            self.call(live, place, mask, mode)
            self.set_options(live, number)
            self.call(live, place, mask, mode)

        def set_options(self, live: Live, number: int) -> None:
            """Set the options and attributes of a sibling whose parameters have the same shapes."""
            relative = relatives[number % len(relatives)]

            def set_them(net: Net) -> None:
                for target, source in zip(singles(net), singles(relative), strict=True):
                    for name in vars(source).keys() - MODULE_ATTRIBUTES:
                        setattr(target, name, getattr(source, name))

            own_shapes, new_shapes = ([net.axes, *(x.shape for x in net.parameters())] for net in (live.net, relative))
            if own_shapes == new_shapes:
                self.change(live, set_them)

        def call(self, live: Live, place: int, mask: Mask, mode: str) -> None:
            axes = live.net.axes
            at = self.positions.setdefault((place, axes), on_axes(layout(place), axes))
            x = self.random(2, TOKENS, subject.shape.dim).to(live.dtype)

            def run(net: Net, at: Positions) -> dict[str, Tensor]:
                with MODES[mode]():
                    if mode == "gradients":
                        return with_gradients(net, x, at, mask, rows=(at.order >= 0).expand(2, -1))
                    return {"output": net(x, at, mask).clone()}

            actual, expected = result(lambda: run(live.net, at)), result(lambda: run(live.fresh(), layout(place)))
            assert_same(actual, expected, f"a call in {live.dtype}, {mode}", live.dtype)

        # Rows that grow with caches.

        @rule(
            changes=st.tuples(*[st.sampled_from(ROW_CHANGES)] * len(SLOTS)),
            number=st.integers(1, 5),
            padding=st.sampled_from(list(PADDINGS)),
            tokens=st.integers(1, CHUNK),
            modes=st.tuples(one_mode, one_mode),
        )
        def go_on(
            self, changes: tuple[str, ...], number: int, padding: str, tokens: int, modes: tuple[str, str]
        ) -> None:
            for talk, change in zip(self.talks, changes, strict=True):
                self.fill(talk, number, padding, modes[1], new_network=change == "another")
                if change.startswith("crop"):
                    talk.crop(number, apart=change == "crop apart")
                elif change == "reorder":
                    talk.reorder([(number + 2 * row) % len(talk.rows) for row in range(1 + number % 3)])
                self.extend(talk, tokens, padding, modes[0])
                self.extend(talk, 1, "none", modes[1])

        @rule(
            number=st.integers(1, 5),
            crop=st.booleans(),
            deep=st.booleans(),
            padding=st.sampled_from(list(PADDINGS)),
            mode=one_mode,
        )
        def go_apart(self, number: int, crop: bool, deep: bool, padding: str, mode: str) -> None:
            """Write to a cache and to its copy in either order: neither changes the other."""
            for talk in self.talks:
                if deep and any(layer.keys is not None and layer.keys.k.requires_grad for layer in talk.cache.layers):
                    # A tensor with an autograd graph can be shared, but not deep-copied.
                    talk.begin(len(talk.rows))
                self.fill(talk, number, padding, "no gradients" if deep else mode)
                twin = talk.copy(deep=deep)
                first, second = (talk, twin) if number % 2 else (twin, talk)
                if crop:
                    first.crop(number, apart=False)
                for branch in (first, first, second, first):
                    self.extend(branch, CHUNK, padding, mode)

        def fill(self, talk: Talk, number: int, padding: str, mode: str, *, new_network: bool = False) -> None:
            """Fill the rows with some tokens; another network takes over if ONE_PASS lacks the dtype."""
            if new_network or talk.live.dtype not in ONE_PASS:
                live = self.life(number)
                talk.live = live if live.dtype in ONE_PASS else self.lives[-1]
                if talk.live.dtype not in ONE_PASS:
                    talk.live = Live.from_subject(subject)
                talk.begin(1 + number % 3)
            if min(len(row) for row in talk.rows) < 3:
                self.extend(talk, 4, padding if talk.cache.held is None else "none", mode)

        def extend(self, talk: Talk, tokens: int, padding: str, mode: str) -> None:
            """Feed tokens to all rows, and compare the output with one pass over each row alone."""
            live, rows = talk.live, len(talk.rows)
            here = torch.tensor([PADDINGS[padding](tokens), *[[True] * tokens] * (rows - 1)])
            lengths = torch.tensor([len(row) for row in talk.rows])
            if int((lengths + here.sum(1)).max()) > min(MAX_TOKENS, subject.shape.max_len):
                talk.begin(rows)
                lengths = torch.zeros_like(lengths)
            order = (lengths[:, None] + here.long().cumsum(1) - 1).masked_fill(~here, -1)
            if bool(here.all()) and live.net.axes == 1:
                at = talk.cache.next(tokens)
            elif talk.cache.held is None and bool(here.any()):
                at = Positions.padded(here)
            else:
                extent = max(int(order.max()) + 1, 1)
                at = Positions(order.clamp(min=0)[..., None], order, unit_step=True, extent=extent)
            assert at.order.expand(rows, -1).equal(order), f"the next tokens stand at {at.order}, expected {order}"
            at = at.with_horizon(LONG)
            x = self.random(rows, tokens, subject.shape.dim).to(live.dtype)
            x.requires_grad_(mode == "gradients")
            with MODES[mode]():
                actual = result(lambda: {"output": live.net(x, at, talk.mask, talk.cache.layers)})
            new_rows = [torch.cat((row, x[b, here[b]].detach().double())) for b, row in enumerate(talk.rows)]
            if isinstance(actual, str):
                assert refuses(live, talk, new_rows), actual
                # Some layers may have cached the tokens already.
                talk.begin(rows)
                return
            talk.rows = new_rows
            out = actual["output"]
            expected_slopes = torch.zeros_like(x)
            fresh = live.fresh()
            sizes = [(len(row), int(present.sum())) for row, present in zip(new_rows, here, strict=True)]
            for length, new in sorted({size for size in sizes if size[1]}):
                alike = [b for b, size in enumerate(sizes) if size == (length, new)]
                whole = torch.stack([new_rows[b] for b in alike]).to(live.dtype)
                last = whole[:, -new:].requires_grad_(x.requires_grad)
                at_alone = Positions.count(length).with_horizon(LONG)
                expected = fresh(torch.cat((whole[:, :-new], last), 1), at_alone, talk.mask)[:, -new:]
                label = f"rows {alike} behind a {talk.kind} cache, {mode}"
                comparisons.agree(torch.stack([out[b, here[b]] for b in alike]), expected, label, ONE_PASS[live.dtype])
                if x.requires_grad:
                    (slopes,) = torch.autograd.grad(expected.tanh().sum(), last)
                    for b, slope in zip(alike, slopes, strict=True):
                        expected_slopes[b, here[b]] = slope
            if x.requires_grad and bool(here.any()):
                # The backward pass runs later, or at the end.
                self.pending.append((live, (out.tanh() * here[..., None]).sum(), x, expected_slopes))

        def teardown(self) -> None:
            self.settle()

        def settle(self, owner: Live | None = None) -> None:
            """Run pending backward passes, of one network or all; their saved tensors must be unchanged."""
            for live, loss, x, expected in [entry for entry in self.pending if owner is None or entry[0] is owner]:
                (actual,) = torch.autograd.grad(loss, x)
                comparisons.agree(actual, expected, "a gradient after later steps", ONE_PASS[live.dtype])
            self.pending = [entry for entry in self.pending if owner is not None and entry[0] is not owner]

        def change(self, live: Live, change: Callable[[Net], Any]) -> None:
            """Change a network after its pending backward passes, and empty its caches of outdated keys."""
            self.settle(live)
            live.do(change)
            for talk in self.talks:
                if talk.live is live:
                    talk.begin(len(talk.rows))

        def life(self, index: int) -> Live:
            return self.lives[index % len(self.lives)]

    States.__qualname__ = States.__name__ = f"StatesOf{''.join(word.capitalize() for word in words(subject.name))}"
    return States


def refuses(live: Live, talk: Talk, rows: list[Tensor]) -> bool:
    """Return whether a fresh network also raises an error for a row in one pass."""
    for row in rows:
        if len(row):
            call = live.fresh()
            at = Positions.count(len(row)).with_horizon(LONG)
            if isinstance(
                result(lambda call=call, at=at, row=row: {"": call(row[None].to(live.dtype), at, talk.mask)}), str
            ):
                return True
    return False


def singles(net: Net) -> list[Any]:
    """Return the single encodings of a network, in a fixed order."""
    return [single for encoding in cast(list[Encoding], list(net.encodings)) for single in subjects.singles(encoding)]


def words(name: str) -> Iterator[str]:
    yield from "".join(letter if letter.isalnum() else " " for letter in name).split()
