"""Keys that grow, without a limit."""

import torch
from torch import Tensor

from posenc.cache.columns import compact
from posenc.cache.held import along, check_behind, check_rows, joined
from posenc.cache.layer import LayerCache, both, rows_of, turned_of
from posenc.cache.memory import Room
from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.watched import is_watched


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

    def take_in(self, new: Keys) -> Keys:
        if self.keys is None:
            self.stored = new
            return new
        old = self.keys
        check_rows(old, new)
        roomy = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched())
        if not roomy:
            self.stored = both(old, new)
            return self.stored
        grown = self.in_room
        memo = {name: grown(f"memo {name}", old.memo[name], fact) for name, fact in new.memo.items()}
        at = joined(old.at, new.at, new.k.shape[0])
        turned = None if old.turned is None else along(old.turned, turned_of(new), new.k.shape[0])
        k, v = grown("k", old.k, new.k), grown("v", old.v, new.v)
        self.stored = Keys(k, v, at, memo, turned=turned, moves=new.moves)
        if turned is not None and (settled := self.settled_of(old)) is not None:
            self.settled = self.stored, self.in_room("settled", settled, new.k)
        return self.stored

    def in_room(self, fact: str, held: Tensor, new: Tensor) -> Tensor:
        """A fact of the tokens held and of the new ones behind them."""
        room = self.rooms.get(fact)
        if room is None:
            room = self.rooms[fact] = Room()
        return room.append(held, new)

    def store(self, keys: Keys) -> None:
        self.stored = compact(keys)

    def rows(self, rows: Tensor) -> None:
        if self.keys is not None:
            self.stored = rows_of(self.keys, rows)

    @property
    def bytes(self) -> int:
        if self.keys is None:
            return 0
        held = self.keys.facts()
        if (settled := self.settled_of(self.keys)) is not None:
            held["settled"] = settled
        return sum(self.memory_of(name, fact).nbytes for name, fact in held.items())

    def memory_of(self, name: str, fact: Tensor) -> Tensor:
        """A fact with the room behind it."""
        room = self.rooms.get(name)
        return fact if room is None or room.given is not fact or room.memory is None else room.memory

    def __copy__(self) -> "GrowingCache":
        """A cache that goes its own way from here, with memory of its own for what comes."""
        twin = type(self)()
        twin.stored, twin.settled = self.stored, self.settled
        return twin
