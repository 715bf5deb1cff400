"""A state machine: encodings of one kind, copies, casts and caches in any order, each step beside fresh objects.

The promises call an encoding a few times; what outlives a call breaks in the order that nobody thought of. Hypothesis
draws such orders, and makes a failing one as short as it can.
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
from posenc.model.seeding import seeded
from posenc.testing.comparisons import same
from posenc.testing.subjects import LONG, TOKENS, Net, Source, Subject, inside, on_axes, with_gradients
from posenc.testing.variants import kin
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import KEPT, OF_EVERY_MODULE

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gradients": nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}
SAME_CALL = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.05}
"""How far a call may lie from the same call of fresh objects, which computes the same numbers in the same order."""

ONE_PASS = {torch.float64: 1e-9, torch.float32: 1e-3}
"""How far tokens behind a cache may lie from one pass over all tokens of their row."""

WINDOW, CHUNK, MOST = 3, 4, 18
SLOTS: dict[str, dict[str, Any]] = {
    "growing": {},
    "static": {"slots": MOST},
    "rolling": {"slots": WINDOW + CHUNK - 1, "rolling": True},
}
PADDINGS: dict[str, Callable[[int], list[bool]]] = {
    "none": lambda tokens: [True] * tokens,
    "left": lambda tokens: [place >= 2 for place in range(tokens)],
    "right": lambda tokens: [place < tokens - 2 for place in range(tokens)],
    "inside": lambda tokens: [place % 2 == 0 for place in range(tokens)],
    "all": lambda tokens: [False] * tokens,
}
"""Which tokens of a chunk the first row has; the other rows have all of them."""

BEFORE = ("crop", "crop apart", "reorder", "another", "nothing")
"""What is done to rows before they go on."""


def placed(which: int) -> Positions:
    """Positions of nine tokens, each time as new objects."""
    left, right = torch.ones(2, TOKENS), torch.ones(2, TOKENS)
    left[0, :4], right[1, 5:] = 0, 0
    rows = torch.stack((torch.arange(TOKENS), torch.arange(TOKENS).flip(0)))
    made = (
        lambda: Positions.count(TOKENS),
        lambda: Positions.count(TOKENS, 5),
        lambda: Positions.padded(left),
        lambda: Positions.padded(right),
        lambda: Positions.packed([4, 5]),
        lambda: Positions.of(rows),
        lambda: Positions.of(torch.arange(TOKENS).double() / 2),
    )
    return made[which % len(made)]().with_horizon(LONG)


PLACES = 7
MASKS = (masks.causal(), masks.bidirectional(), masks.window(3), masks.prefix(4))


@dataclass
class Live:
    """A network in use, and one to which the same was done, and which was never called."""

    net: Net
    unused: Net

    @classmethod
    def of(cls, subject: Subject) -> "Live":
        return cls(subject.net(), subject.net())

    def fresh(self) -> Net:
        """New objects that compute the same, and know nothing of what was kept."""
        return copy.deepcopy(self.unused).apart()

    def copied(self) -> "Live":
        return Live(copy.deepcopy(self.net), copy.deepcopy(self.unused))

    def do(self, change: Callable[[Net], Any]) -> None:
        change(self.net)
        change(self.unused)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.net.parameters()).dtype


@dataclass
class Talk:
    """Rows that grow behind a cache: the network, the cache, and all that each row holds [n, dim]."""

    live: Live
    kind: str
    rows: list[Tensor]
    cache: Cache = field(init=False)

    def __post_init__(self) -> None:
        self.begin(len(self.rows))

    def begin(self, rows: int) -> None:
        """Begin anew, with nothing held."""
        self.cache = Cache(len(self.live.net.layers), **SLOTS[self.kind])
        self.rows = [torch.zeros(0, self.live.net.shape.dim)] * rows

    @property
    def mask(self) -> Mask:
        return masks.window(WINDOW) if self.kind == "rolling" else masks.causal()

    def crop(self, fewer: int, *, apart: bool) -> None:
        """Go back by some tokens; `apart` in every other row only."""
        held = [len(row) for row in self.rows]
        least = max(0, min(held) - fewer)
        limits = [n if b % 2 else max(0, n - fewer) for b, n in enumerate(held)] if apart else [least] * len(held)
        try:
            self.cache.crop(torch.tensor(limits) if apart else least)
        except ValueError:
            assert self.kind == "rolling"
            self.begin(len(self.rows))
            return
        self.rows = [row[:limit] for row, limit in zip(self.rows, limits, strict=True)]

    def reorder(self, chosen: list[int]) -> None:
        if self.cache.held is not None:
            self.cache.rows(torch.tensor(chosen))
            self.rows = [self.rows[row] for row in chosen]

    def copied(self, *, deep: bool) -> "Talk":
        """Another that goes its own way from here."""
        twin = copy.copy(self)
        twin.cache = copy.deepcopy(self.cache) if deep else copy.copy(self.cache)
        twin.rows = list(self.rows)
        return twin


def result(call: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor] | str:
    """What a call gives, or how it refuses."""
    try:
        return call()
    except ValueError as reason:
        return str(reason)


def agree(got: dict[str, Tensor] | str, expected: dict[str, Tensor] | str, what: str, dtype: torch.dtype) -> None:
    """Raises AssertionError unless both give the same, or refuse in the same words."""
    if isinstance(got, str) or isinstance(expected, str):
        assert got == expected, f"{what}: refused as '{got}', and by fresh objects as '{expected}'"
        return
    for name, value in expected.items():
        same(got[name], value, f"{name} of {what}", SAME_CALL[dtype])


def machine_of(source: "Subject | Source") -> type[RuleBasedStateMachine]:
    """The state machine of a subject: a spec, an Encoding class, a factory, or a tuple of them.

    Its `TestCase` is what unittest and pytest run. Every rule compares something, so that few steps tell much.
    """
    subject = Subject.of(source)
    family = [subject, *kin(subject)]
    relatives = [relative.net() for relative in family]
    alone: dict[tuple[int, int], dict[str, Tensor] | str] = {}
    one_live, one_mode = st.integers(0, 3), st.sampled_from(list(MODES))

    class States(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            # A failure can be shown again only if nothing is left of the run before.
            KEPT.clear()
            self.lives: list[Live] = []
            self.talks: list[Talk] = []
            self.shared: dict[tuple[int, int], Positions] = {}
            self.owed: list[tuple[Live, Tensor, Tensor, Tensor]] = []
            self.drawn = 0

        def random(self, *shape: int) -> Tensor:
            self.drawn += 1
            source = torch.Generator().manual_seed(self.drawn)
            return torch.randn(*shape, dtype=torch.float64, generator=source)

        @initialize(other=st.integers(0, len(family) - 1))
        def begin(self, other: int) -> None:
            self.lives = [Live.of(subject), Live.of(subject), Live.of(family[other])]
            self.lives[0].do(lambda net: net.bfloat16())
            self.lives[2].do(lambda net: net.float())
            self.talks = [Talk(self.lives[1], kind, [torch.empty(0)] * 2) for kind in SLOTS]

        # Networks of one kind on positions that they share.

        @rule(
            first=one_live,
            place=st.integers(0, PLACES - 1),
            mask=st.sampled_from(MASKS),
            mode=one_mode,
        )
        def call_all(self, first: int, place: int, mask: Mask, mode: str) -> None:
            # What was kept without gradients must not be there when they are wanted.
            for way, which in itertools.product(dict.fromkeys((mode, "gradients")), range(len(self.lives))):
                self.call(self.life(first + which), place, mask, way)

        @rule(place=st.integers(0, PLACES - 1))
        def call_relatives(self, place: int) -> None:
            """The subject, and every other of its kind, on the positions that all share."""
            x = torch.linspace(-20, 20, 2 * TOKENS * subject.shape.dim, dtype=torch.float64).sin()
            x = x.view(2, TOKENS, subject.shape.dim)

            def run(net: Net, at: Positions) -> dict[str, Tensor]:
                with torch.no_grad():
                    return {"output": net(x, at, masks.causal())}

            shared: dict[int, Positions] = {}
            for kind, unused in enumerate(relatives):
                net = copy.deepcopy(unused)
                at = shared.setdefault(net.axes, on_axes(placed(place), net.axes))
                got = result(partial(run, net, at))
                if (kind, place) not in alone:
                    alone[kind, place] = result(partial(run, copy.deepcopy(unused).apart(), placed(place)))
                agree(got, alone[kind, place], str(family[kind]), torch.float64)

        @rule(
            which=one_live,
            change=st.sampled_from(("copy", "cast", "parameters", "data", "another")),
            number=st.integers(0, 20),
            place=st.integers(0, PLACES - 1),
            mode=one_mode,
        )
        def change_one(self, which: int, change: str, number: int, place: int, mode: str) -> None:
            live, mask = self.life(which), MASKS[number % len(MASKS)]
            self.call(live, place, mask, mode)
            if change == "cast":
                dtype = list(SAME_CALL)[number % len(SAME_CALL)]
                self.change(live, lambda net: net.to(dtype))
            elif change in ("parameters", "data"):
                self.move_parameters(live, through_data=change == "data")
            else:
                twin = live.copied() if change == "copy" else Live.of(family[number % len(family)])
                if change == "copy":
                    # What is done to a copy is not done to what it was made from.
                    self.move_parameters(twin, through_data=False)
                    self.set_options(twin, number)
                gone = self.life(which + 1)
                self.lives = [one for one in self.lives if len(self.lives) < 4 or one is not gone] + [twin]
                self.call(twin, place, mask, mode)
            self.call(live, place, mask, mode)

        def move_parameters(self, live: Live, *, through_data: bool) -> None:
            self.drawn += 1
            seed = self.drawn

            def move(net: Net) -> None:
                with seeded(seed), torch.no_grad():
                    for parameter in net.encodings.parameters():
                        step = 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
                        if through_data:
                            parameter.data = parameter.data + step.to(parameter)
                        else:
                            parameter += step.to(parameter)

            self.change(live, move)

        @rule(which=one_live, number=st.integers(0, 20), place=st.integers(0, PLACES - 1), mode=one_mode)
        def set_one(self, which: int, number: int, place: int, mode: str) -> None:
            live, mask = self.life(which), MASKS[number % len(MASKS)]
            self.call(live, place, mask, mode)
            self.set_options(live, number)
            self.call(live, place, mask, mode)

        def set_options(self, live: Live, number: int) -> None:
            """The options of another of its kind, and what the constructor makes of them, where parameters fit."""
            other = relatives[number % len(relatives)]

            def set_them(net: Net) -> None:
                for mine, theirs in zip(singles(net), singles(other), strict=True):
                    for name in vars(theirs).keys() - OF_EVERY_MODULE:
                        setattr(mine, name, getattr(theirs, name))

            mine, theirs = ([net.axes, *(one.shape for one in net.parameters())] for net in (live.net, other))
            if mine == theirs:
                self.change(live, set_them)

        def call(self, live: Live, place: int, mask: Mask, mode: str) -> None:
            axes = live.net.axes
            at = self.shared.setdefault((place, axes), on_axes(placed(place), axes))
            x = self.random(2, TOKENS, subject.shape.dim).to(live.dtype)

            def run(net: Net, at: Positions) -> dict[str, Tensor]:
                with MODES[mode]():
                    if mode == "gradients":
                        return with_gradients(net, x, at, mask, rows=(at.order >= 0).expand(2, -1))
                    return {"output": net(x, at, mask).clone()}

            got, expected = result(lambda: run(live.net, at)), result(lambda: run(live.fresh(), placed(place)))
            agree(got, expected, f"a call in {live.dtype}, {mode}", live.dtype)

        # Rows that grow behind caches.

        @rule(
            before=st.tuples(*[st.sampled_from(BEFORE)] * len(SLOTS)),
            number=st.integers(1, 5),
            padding=st.sampled_from(list(PADDINGS)),
            tokens=st.integers(1, CHUNK),
            modes=st.tuples(one_mode, one_mode),
        )
        def go_on(
            self, before: tuple[str, ...], number: int, padding: str, tokens: int, modes: tuple[str, str]
        ) -> None:
            for talk, done in zip(self.talks, before, strict=True):
                self.fill(talk, number, padding, modes[1], another=done == "another")
                if done.startswith("crop"):
                    talk.crop(number, apart=done == "crop apart")
                elif done == "reorder":
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
            """A cache and its copy: whichever writes first, and over what both held, leaves the other as it was."""
            for talk in self.talks:
                if deep and any(layer.keys is not None and layer.keys.k.requires_grad for layer in talk.cache.layers):
                    # What holds a graph can be shared, and not copied.
                    talk.begin(len(talk.rows))
                self.fill(talk, number, padding, "no gradients" if deep else mode)
                twin = talk.copied(deep=deep)
                first, second = (talk, twin) if number % 2 else (twin, talk)
                if crop:
                    first.crop(number, apart=False)
                for one in (first, first, second, first):
                    self.extend(one, CHUNK, padding, mode)

        def fill(self, talk: Talk, number: int, padding: str, mode: str, *, another: bool = False) -> None:
            """Have rows hold some tokens, of a network whose numbers tell rows apart; of another one if need be."""
            if another or talk.live.dtype not in ONE_PASS:
                live = self.life(number)
                talk.live = live if live.dtype in ONE_PASS else self.lives[-1]
                if talk.live.dtype not in ONE_PASS:
                    talk.live = Live.of(subject)
                talk.begin(1 + number % 3)
            if min(len(row) for row in talk.rows) < 3:
                self.extend(talk, 4, padding if talk.cache.held is None else "none", mode)

        def extend(self, talk: Talk, tokens: int, padding: str, mode: str) -> None:
            """Feed tokens to all rows, and compare what comes out with one pass over each row alone."""
            live, rows = talk.live, len(talk.rows)
            here = torch.tensor([PADDINGS[padding](tokens), *[[True] * tokens] * (rows - 1)])
            held = torch.tensor([len(row) for row in talk.rows])
            if int((held + here.sum(1)).max()) > min(MOST, subject.shape.max_len):
                talk.begin(rows)
                held = torch.zeros_like(held)
            order = (held[:, None] + here.long().cumsum(1) - 1).masked_fill(~here, -1)
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
                got = result(lambda: {"output": live.net(x, at, talk.mask, talk.cache.layers)})
            grown = [torch.cat((row, x[b, here[b]].detach().double())) for b, row in enumerate(talk.rows)]
            if isinstance(got, str):
                assert refuses(live, talk, grown), got
                # Not all layers may have taken the tokens in.
                talk.begin(rows)
                return
            talk.rows = grown
            out = got["output"]
            expected_slopes = torch.zeros_like(x)
            fresh = live.fresh()
            sizes = [(len(row), int(present.sum())) for row, present in zip(grown, here, strict=True)]
            for held_now, new in sorted({size for size in sizes if size[1]}):
                alike = [b for b, size in enumerate(sizes) if size == (held_now, new)]
                whole = torch.stack([grown[b] for b in alike]).to(live.dtype)
                last = whole[:, -new:].requires_grad_(x.requires_grad)
                at_alone = Positions.count(held_now).with_horizon(LONG)
                expected = fresh(torch.cat((whole[:, :-new], last), 1), at_alone, talk.mask)[:, -new:]
                what = f"rows {alike} behind a {talk.kind} cache, {mode}"
                same(torch.stack([out[b, here[b]] for b in alike]), expected, what, ONE_PASS[live.dtype])
                if x.requires_grad:
                    (slopes,) = torch.autograd.grad(expected.tanh().sum(), last)
                    for b, slope in zip(alike, slopes, strict=True):
                        expected_slopes[b, here[b]] = slope
            if x.requires_grad and bool(here.any()):
                # The backward pass comes later, or at the end.
                self.owed.append((live, (out.tanh() * here[..., None]).sum(), x, expected_slopes))

        def teardown(self) -> None:
            self.settle()

        def settle(self, of: Live | None = None) -> None:
            """The backward passes that are still owed, of a network or of all: what they need must still be there."""
            for live, loss, x, expected in [one for one in self.owed if of is None or one[0] is of]:
                (got,) = torch.autograd.grad(loss, x)
                same(got, expected, "a gradient after later steps", ONE_PASS[live.dtype])
            self.owed = [one for one in self.owed if of is not None and one[0] is not of]

        def change(self, live: Live, done: Callable[[Net], Any]) -> None:
            """Change a network: what it has said so far is settled, and its caches hold keys of another one."""
            self.settle(live)
            live.do(done)
            for talk in self.talks:
                if talk.live is live:
                    talk.begin(len(talk.rows))

        def life(self, which: int) -> Live:
            return self.lives[which % len(self.lives)]

    States.__qualname__ = States.__name__ = f"StatesOf{''.join(word.capitalize() for word in words(subject.name))}"
    return States


def refuses(live: Live, talk: Talk, rows: list[Tensor]) -> bool:
    """Whether a fresh network refuses one of the rows in one pass too."""
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
    """The single encodings of a network, always in the same order."""
    return [single for encoding in cast(list[Encoding], list(net.encodings)) for single in inside(encoding)]


def words(name: str) -> Iterator[str]:
    yield from "".join(letter if letter.isalnum() else " " for letter in name).split()
