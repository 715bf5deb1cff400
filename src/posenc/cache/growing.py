"""Keys that grow, without a limit."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.cache.held import check_behind, check_rows, joined
from posenc.cache.layer import LayerCache, along, both, rows_of, turned_of
from posenc.cache.memory import Room
from posenc.cache.operations import noticed
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions
from posenc.shared_tables import once
from posenc.watched import is_watched


class GrowingCache(LayerCache):
    """Keys that grow: no limit, no setting.

    Without gradients what is remembered lies in memory with room for as many tokens again, so that a step copies its
    own tokens and seldom all; what an earlier `extend` gave stays as it was. With gradients, and inside a compiled
    graph, every step makes new tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rooms: dict[str, Room] = {}

    def check(self, at: Positions, mask: Mask) -> None:
        """Raises ValueError unless these tokens come behind what it holds; it has room for whatever comes."""
        check_behind(self.keys, at, mask)

    def extend(self, new: Keys) -> Keys:
        if self.keys is None:
            self.keys = new
            return new
        old = self.keys
        check_rows(old, new)
        roomy = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched())
        if not roomy:
            self.keys = both(old, new)
            return self.keys
        facts = new.facts()
        grown = old.each(lambda name, fact: self.in_room(name, fact, facts[name]))
        at = joined(old.at, new.at, new.k.shape[0])
        turned = None if old.turned is None else along(old.turned, turned_of(new), new.k.shape[0])
        self.keys = replace(grown, at=at, turned=turned, fixed=old.fixed or new.fixed)
        if turned is not None and self.settled is not None and self.settled[0] is old:
            self.settled = self.keys, self.in_room("settled", self.settled[1], new.k)
        return self.keys

    def in_room(self, fact: str, held: Tensor, new: Tensor) -> Tensor:
        """A fact of the tokens held and of the new ones behind them."""
        room = self.rooms.get(fact)
        if room is None:
            room = self.rooms[fact] = Room()
        return room.append(held, new)

    def store(self, keys: Keys) -> None:
        columns, at = once(keys.at, (left,), lambda: left(keys.at))
        if at is None:
            self.keys = None
            return
        if columns is not None:
            keys = chosen_columns(keys, columns)
        self.keys = replace(keys, at=at)

    def rows(self, rows: Tensor) -> None:
        if self.keys is not None:
            self.keys = rows_of(self.keys, rows)

    @property
    def bytes(self) -> int:
        if self.keys is None:
            return 0
        held = self.keys.facts()
        if self.settled is not None and self.settled[0] is self.keys:
            held["settled"] = self.settled[1]
        return sum(self.memory_of(name, fact).nbytes for name, fact in held.items())

    def memory_of(self, name: str, fact: Tensor) -> Tensor:
        """A fact with the room behind it."""
        room = self.rooms.get(name)
        return fact if room is None or room.given is not fact or room.memory is None else room.memory

    def __copy__(self) -> "GrowingCache":
        """A cache that goes its own way from here, with memory of its own for what comes."""
        twin = type(self)()
        twin.keys, twin.settled = self.keys, self.settled
        return twin


def left(at: Positions) -> tuple[slice | Tensor | None, Positions | None]:
    """Which of the S columns of tokens are still to be held, None for all; and what stands in them, None for nothing.

    Where all rows forgot the same tokens these columns go; else the tokens of each row move together.
    """
    held = at.order >= 0
    most = int(held.sum(1).max())
    if most == 0:
        return None, None
    if most == at.tokens:
        return None, noticed(at)
    if bool((held == held[:1]).all()):
        index = held[:1].nonzero()[:, 1]
        if int(index[-1]) == most - 1:
            columns = slice(0, most)
            return columns, noticed(at.changed(**{n: fact[:, columns] for n, fact in of_tokens(at).items()}))
        index = index[None]
    else:
        index = (~held).byte().argsort(dim=1, stable=True)[:, :most]
    return index, noticed(at.changed(**{name: of_columns(fact, index, 1) for name, fact in of_tokens(at).items()}))


def of_tokens(at: Positions) -> dict[str, Tensor]:
    """What positions say of each token, [B or 1, S, ...]."""
    return {name: fact for name, fact in at.tensors().items() if name != "horizon"}


def chosen_columns(keys: Keys, columns: slice | Tensor) -> Keys:
    """The keys of some tokens, a slice or numbers [B or 1, n]; where they are is left to the caller."""

    def of(fact: Tensor) -> Tensor:
        return fact[:, :, columns] if isinstance(columns, slice) else of_columns(fact, columns, 2)

    turned = keys.turned
    if turned is not None:
        turned = turned[:, columns] if isinstance(columns, slice) else of_columns(turned, columns, 1)
    return replace(keys.each(lambda name, fact: of(fact)), turned=turned)


def of_columns(fact: Tensor, index: Tensor, axis: int) -> Tensor:
    """Some tokens, by numbers [B or 1, n], of a fact that has them along an axis behind that of the rows."""
    if index.shape[0] == 1:
        return fact.index_select(axis, index[0])
    rows, n = index.shape
    shape: list[Any] = [rows, *(1,) * (axis - 1), n, *(1,) * (fact.dim() - axis - 1)]
    sizes = [rows, *fact.shape[1:axis], n, *fact.shape[axis + 1 :]]
    return fact.expand(rows, *fact.shape[1:]).gather(axis, index.view(shape).expand(sizes))
