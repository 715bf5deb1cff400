"""Cached keys that move: after an operation a cache holds the keys of the new positions."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from posenc.cache import GrowingCache, LayerCache, SlotCache
from posenc.encoding.base import WHY_FIXED, Encoding
from posenc.model.attention import Attention
from posenc.testing.comparisons import agree
from posenc.testing.contract import promise
from posenc.testing.subjects import Subject, embeddings, far_enough, on_axes
from posenc.tokens import masks
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.verdicts import expect

LENGTH, STEPS = 8, 2
"""The number of tokens in the cache, and of those appended to it."""

Row: TypeAlias = list[tuple[int, int]]
"""The cached tokens by number, and the position of each."""


@dataclass(frozen=True)
class Operation:
    """An operation on a cache, and its expected effect, written apart from the implementation.

    name     its name in messages
    do       the call
    leaves   maps the cached tokens before the call to those after it
    moves    whether the position of a token changes
    by_axis  whether it is defined for tokens on one axis only
    """

    name: str
    do: Callable[[LayerCache], None]
    leaves: Callable[[Row], Row]
    moves: bool = True
    by_axis: bool = True


def close_gaps(row: Row, keep: Collection[int]) -> Row:
    """Return the tokens at these positions, renumbered without gaps from the first token's position."""
    return [(token, row[0][1] + count) for count, (token, _) in enumerate(at for at in row if at[1] in keep)]


GAPPY_PLACES = 1, 2, 4, 5, 6, 7, 9, 12
OPERATIONS = (
    Operation("crop", lambda cache: cache.crop(5), lambda row: [at for at in row if at[1] < 5], False, False),
    Operation(
        "evict in place",
        lambda cache: cache.evict([0, 1, 5, 6], renumber=False),
        lambda row: [at for at in row if at[1] in (0, 1, 5, 6)],
        False,
        False,
    ),
    Operation("evict", lambda cache: cache.evict([0, 1, 5, 6]), lambda row: close_gaps(row, (0, 1, 5, 6))),
    Operation("drop", lambda cache: cache.drop(slice(0, 3)), lambda row: close_gaps(row, range(3, LENGTH))),
    Operation("move", lambda cache: cache.move(by=4), lambda row: [(token, place + 4) for token, place in row]),
    Operation(
        "move the last",
        lambda cache: cache.move(slice(6, None), to=9),
        lambda row: [(token, place + 3 * (place >= 6)) for token, place in row],
    ),
    Operation(
        "move to positions",
        lambda cache: cache.move(to=on_axes(positions_at(GAPPY_PLACES), cached_axes(cache))),
        lambda row: list(zip([token for token, _ in row], GAPPY_PLACES, strict=True)),
        True,
        False,
    ),
)


def cached_axes(cache: LayerCache) -> int:
    assert cache.held is not None
    return cache.held.axes


def positions_at(places: Sequence[int]) -> Positions:
    """Return positions of one row of tokens."""
    order = torch.tensor([list(places)])
    return far_enough(Positions(order[..., None], order, unit_step=True))


@promise
def a_moved_key_is_the_key_of_its_new_place(subject: Subject) -> None:
    """Cached tokens that move give the output of their new position, or the move is refused."""
    net = subject.net()
    x = embeddings(subject, LENGTH + 2 * STEPS)
    caches: dict[str, tuple[Callable[[], LayerCache], Mask]] = {
        "growing": (GrowingCache, masks.causal()),
        "static": (lambda: SlotCache(20), masks.causal()),
        "rolling": (lambda: SlotCache(20, rolling=True), masks.window(19)),
    }
    for layer, encoding in zip(net.attentions, net.layer_encodings, strict=True):
        for operation in OPERATIONS:
            if operation.by_axis and net.axes > 1:
                continue
            for name, (make, mask) in caches.items():
                # All caches select tokens alike; only a cache with slots has to move them in memory.
                if name != "growing" and operation.name not in ("evict", "move the last"):
                    continue
                cache, label = make(), f"{operation.name}, {name} cache"
                attend = partial(run_layer, layer, encoding, net.axes, mask)
                attend(x[:, :LENGTH], positions_at(range(LENGTH)), cache)
                if operation.moves and encoding.moves in WHY_FIXED:
                    check_move_is_refused(cache, operation, label)
                    continue
                with torch.no_grad():
                    operation.do(cache)
                row = grow(attend, cache, x, operation.leaves([(n, n) for n in range(LENGTH)]), LENGTH, label)
                if encoding.moves not in WHY_FIXED and net.axes == 1:
                    cache.move(by=1)
                    grow(
                        attend,
                        cache,
                        x,
                        [(token, place + 1) for token, place in row],
                        LENGTH + STEPS,
                        f"{label}, moved",
                    )


def grow(attend: Callable[..., Tensor], cache: LayerCache, x: Tensor, row: Row, first: int, label: str) -> Row:
    """Append tokens one by one, and return the row. Raises AssertionError unless one pass gives the same output."""
    last = max(place for _, place in row)
    new = [(first + n, last + 1 + n) for n in range(STEPS)]
    actual = torch.cat([attend(x[:, token : token + 1], positions_at([place]), cache) for token, place in new], 1)
    row = [*row, *new]
    one_pass = attend(x[:, [token for token, _ in row]], positions_at([place for _, place in row]), None)
    agree(actual, one_pass[:, -STEPS:], f"tokens behind {label}")
    return row


def run_layer(
    layer: Attention, encoding: Encoding, axes: int, mask: Mask, x: Tensor, at: Positions, cache: LayerCache | None
) -> Tensor:
    """Return the output of one layer for embeddings to which the encoding has been added."""
    at = on_axes(at, axes)
    with torch.no_grad():
        return layer(encoding.embed(x, at), positions=at, mask=mask, cache=cache, encoding=encoding)


def check_move_is_refused(cache: LayerCache, operation: Operation, label: str) -> None:
    """Raise AssertionError unless the operation is refused with advice, and the cache is unchanged."""
    old_keys = cache.keys
    try:
        operation.do(cache)
    except ValueError as reason:
        expect("feed the tokens again" in str(reason), f"{label} is refused without a way out: {reason}")
        expect(cache.keys is old_keys, f"{label} is refused, and has changed what is held")
        return
    raise AssertionError(f"{label} moved keys that hold a position")
