"""Remembered keys that move: what a cache holds after an operation is what was computed there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from posenc import masks
from posenc.attention import Attention
from posenc.cache import GrowingCache, LayerCache, SlotCache
from posenc.encoding import Encoding
from posenc.masks import Mask
from posenc.positions import Positions
from posenc.testing.comparisons import same
from posenc.testing.contract import promise
from posenc.testing.subjects import Subject, far_enough, on_axes, tokens

HELD, NEW = 8, 2
"""How many tokens are held, and how many come behind them."""


@dataclass(frozen=True)
class Operation:
    """Something that is done to a cache, and which tokens then stand where, said apart from how it is done.

    name     as a person says it
    do       the call
    stays    (token, its place) of all that are held afterwards
    moves    whether a token stands elsewhere
    by_axis  whether it is for tokens on one axis alone
    """

    name: str
    do: Callable[[LayerCache], None]
    stays: tuple[tuple[int, int], ...]
    moves: bool
    by_axis: bool = True


def in_row(*tokens: int) -> tuple[tuple[int, int], ...]:
    """These tokens, counted from 0."""
    return tuple((token, place) for place, token in enumerate(tokens))


def at_places(cache: LayerCache) -> None:
    cache.move(to=on_axes(placed(MIRRORED), held_axes(cache)))


def held_axes(cache: LayerCache) -> int:
    assert cache.held is not None
    return cache.held.axes


MIRRORED = (0, 1, 2, 3, 5, 6, 8, 10)
OPERATIONS = (
    Operation("crop", lambda cache: cache.crop(5), in_row(0, 1, 2, 3, 4), False, False),
    Operation(
        "evict in place",
        lambda cache: cache.evict([0, 1, 5, 6, 7], renumber=False),
        ((0, 0), (1, 1), (5, 5), (6, 6), (7, 7)),
        False,
        False,
    ),
    Operation("evict", lambda cache: cache.evict([0, 1, 5, 6]), in_row(0, 1, 5, 6), True),
    Operation("drop", lambda cache: cache.drop(slice(0, 3)), in_row(3, 4, 5, 6, 7), True),
    Operation("move", lambda cache: cache.move(by=4), tuple((token, token + 4) for token in range(HELD)), True),
    Operation(
        "move the last",
        lambda cache: cache.move(slice(6, None), to=9),
        (*in_row(*range(6)), (6, 9), (7, 10)),
        True,
    ),
    Operation("move to positions", at_places, tuple(enumerate(MIRRORED)), True, False),
)


def placed(places: tuple[int, ...]) -> Positions:
    """Tokens of one row at these places."""
    order = torch.tensor([places])
    return far_enough(Positions(order[..., None], order, unit_step=True))


@promise
def a_moved_key_is_the_key_of_its_new_place(subject: Subject) -> None:
    """Tokens that are cut out, shifted and put elsewhere in a cache give what they give there; or it is refused."""
    net = subject.net()
    x, more = tokens(subject, HELD), tokens(subject, NEW, seed=1)
    caches: dict[str, tuple[Callable[[], LayerCache], Mask]] = {
        "growing": (GrowingCache, masks.causal()),
        "static": (lambda: SlotCache(16), masks.causal()),
        "rolling": (lambda: SlotCache(16, rolling=True), masks.window(14)),
    }
    for layer, encoding in zip(net.attentions, net.used, strict=True):
        for operation in OPERATIONS:
            if operation.by_axis and net.axes > 1:
                continue
            for name, (make, mask) in caches.items():
                cache = make()
                attend = partial(through, layer, encoding, net.axes, mask)
                attend(x, placed(tuple(range(HELD))), cache)
                what = f"{operation.name}, {name} cache"
                if operation.moves and encoding.moves in ("recomputed", "never"):
                    check_refused(cache, operation, what)
                    continue
                operation.do(cache)
                kept, places = zip(*operation.stays, strict=True)
                behind = tuple(range(max(places) + 1, max(places) + 1 + NEW))
                got = [attend(more[:, n : n + 1], placed(behind[n : n + 1]), cache) for n in range(NEW)]
                whole = torch.cat((x[:, kept], more), 1)
                expected = attend(whole, placed((*places, *behind)), None)
                same(torch.cat(got, 1), expected[:, -NEW:], f"tokens behind {what}")


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
        if "feed the tokens again" not in str(reason):
            raise AssertionError(f"{what} is refused without a way out: {reason}") from reason
        if cache.keys is not before:
            raise AssertionError(f"{what} is refused, and has changed what is held") from reason
        return
    raise AssertionError(f"{what} moved keys that hold a position")
