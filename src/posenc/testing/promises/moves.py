"""Remembered keys that move: what a cache holds after an operation is what was computed there."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from posenc.cache import GrowingCache, LayerCache, SlotCache
from posenc.encoding.base import WHY_FIXED, Encoding
from posenc.model.attention import Attention
from posenc.testing.comparisons import same
from posenc.testing.contract import promise
from posenc.testing.subjects import Subject, far_enough, on_axes, tokens
from posenc.tokens import masks
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.verdicts import expect

HELD, NEW = 8, 2
"""How many tokens are held, and how many come behind them."""

Row: TypeAlias = list[tuple[int, int]]
"""The tokens that are held, by their numbers, and the place of each."""


@dataclass(frozen=True)
class Operation:
    """Something that is done to a cache, and what it comes to, said apart from how it is done.

    name     as a person says it
    do       the call
    leaves   what is then held
    moves    whether a token stands elsewhere
    by_axis  whether it is for tokens on one axis alone
    """

    name: str
    do: Callable[[LayerCache], None]
    leaves: Callable[[Row], Row]
    moves: bool = True
    by_axis: bool = True


def closed(row: Row, keep: Collection[int]) -> Row:
    """The tokens at these places, counted on from where the first of all stood."""
    return [(token, row[0][1] + count) for count, (token, _) in enumerate(at for at in row if at[1] in keep)]


SPREAD = 1, 2, 4, 5, 6, 7, 9, 12
OPERATIONS = (
    Operation("crop", lambda cache: cache.crop(5), lambda row: [at for at in row if at[1] < 5], False, False),
    Operation(
        "evict in place",
        lambda cache: cache.evict([0, 1, 5, 6], renumber=False),
        lambda row: [at for at in row if at[1] in (0, 1, 5, 6)],
        False,
        False,
    ),
    Operation("evict", lambda cache: cache.evict([0, 1, 5, 6]), lambda row: closed(row, (0, 1, 5, 6))),
    Operation("drop", lambda cache: cache.drop(slice(0, 3)), lambda row: closed(row, range(3, HELD))),
    Operation("move", lambda cache: cache.move(by=4), lambda row: [(token, place + 4) for token, place in row]),
    Operation(
        "move the last",
        lambda cache: cache.move(slice(6, None), to=9),
        lambda row: [(token, place + 3 * (place >= 6)) for token, place in row],
    ),
    Operation(
        "move to positions",
        lambda cache: cache.move(to=on_axes(placed(SPREAD), held_axes(cache))),
        lambda row: list(zip([token for token, _ in row], SPREAD, strict=True)),
        True,
        False,
    ),
)


def held_axes(cache: LayerCache) -> int:
    assert cache.held is not None
    return cache.held.axes


def placed(places: Sequence[int]) -> Positions:
    """Tokens of one row at these places."""
    order = torch.tensor([list(places)])
    return far_enough(Positions(order[..., None], order, unit_step=True))


@promise
def a_moved_key_is_the_key_of_its_new_place(subject: Subject) -> None:
    """Tokens that are cut out, shifted and put elsewhere in a cache give what they give there; or it is refused."""
    net = subject.net()
    x = tokens(subject, HELD + 2 * NEW)
    caches: dict[str, tuple[Callable[[], LayerCache], Mask]] = {
        "growing": (GrowingCache, masks.causal()),
        "static": (lambda: SlotCache(20), masks.causal()),
        "rolling": (lambda: SlotCache(20, rolling=True), masks.window(19)),
    }
    for layer, encoding in zip(net.attentions, net.used, strict=True):
        for operation in OPERATIONS:
            if operation.by_axis and net.axes > 1:
                continue
            for name, (make, mask) in caches.items():
                # What is chosen of the tokens is the same everywhere; a cache with slots has to put them elsewhere.
                if name != "growing" and operation.name not in ("evict", "move the last"):
                    continue
                cache, what = make(), f"{operation.name}, {name} cache"
                attend = partial(through, layer, encoding, net.axes, mask)
                attend(x[:, :HELD], placed(range(HELD)), cache)
                if operation.moves and encoding.moves in WHY_FIXED:
                    check_refused(cache, operation, what)
                    continue
                with torch.no_grad():
                    operation.do(cache)
                row = go_on(attend, cache, x, operation.leaves([(n, n) for n in range(HELD)]), HELD, what)
                if encoding.moves not in WHY_FIXED and net.axes == 1:
                    cache.move(by=1)
                    go_on(attend, cache, x, [(token, place + 1) for token, place in row], HELD + NEW, f"{what}, moved")


def go_on(attend: Callable[..., Tensor], cache: LayerCache, x: Tensor, row: Row, first: int, what: str) -> Row:
    """The row with two more tokens, which come one by one. Raises AssertionError unless one pass gives the same."""
    last = max(place for _, place in row)
    new = [(first + n, last + 1 + n) for n in range(NEW)]
    got = torch.cat([attend(x[:, token : token + 1], placed([place]), cache) for token, place in new], 1)
    row = [*row, *new]
    whole = attend(x[:, [token for token, _ in row]], placed([place for _, place in row]), None)
    same(got, whole[:, -NEW:], f"tokens behind {what}")
    return row


def through(
    layer: Attention, encoding: Encoding, axes: int, mask: Mask, x: Tensor, at: Positions, cache: LayerCache | None
) -> Tensor:
    """What one layer makes of tokens; what is added to embeddings is added in front of it."""
    at = on_axes(at, axes)
    with torch.no_grad():
        return layer(encoding.embed(x, at), positions=at, mask=mask, cache=cache, encoding=encoding)


def check_refused(cache: LayerCache, operation: Operation, what: str) -> None:
    """Raises AssertionError unless the operation is refused with a way out, and nothing has changed."""
    before = cache.keys
    try:
        operation.do(cache)
    except ValueError as reason:
        expect("feed the tokens again" in str(reason), f"{what} is refused without a way out: {reason}")
        expect(cache.keys is before, f"{what} is refused, and has changed what is held")
        return
    raise AssertionError(f"{what} moved keys that hold a position")
