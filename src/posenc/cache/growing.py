"""Keys that grow, without a limit."""

import torch
from torch import Tensor

from posenc.cache.columns import compact
from posenc.cache.held import check_behind, check_rows
from posenc.cache.layer import LayerCache, concatenated_keys
from posenc.cache.memory import memory
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
        # Of each fact what was given of it last, and the memory that this lies in, with room behind it.
        self.rooms: dict[str, tuple[Tensor, Tensor]] = {}

    def check(self, at: Positions, mask: Mask) -> None:
        """Raises ValueError unless these tokens come behind what it holds; it has room for whatever comes."""
        check_behind(self.keys, at, mask)

    def take_in(self, new: Keys) -> Keys:
        if self.keys is None:
            self.stored = new
            return new
        old = self.keys
        check_rows(old, new)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched():
            self.stored = concatenated_keys(old, new)
            return self.stored
        settled = self.settled_of(old)
        self.stored = concatenated_keys(old, new, self.append)
        if settled is not None:
            self.settled = self.stored, self.append("settled", settled, new.k)
        return self.stored

    def append(self, name: str, held: Tensor, new: Tensor) -> Tensor:
        """A fact [B, H, S, ...] of tokens held and of new ones behind them, moved only where there is no room left."""
        if held.dtype != new.dtype:
            return torch.cat((held, new), 2)
        tokens, more = held.shape[2], new.shape[2]
        total = tokens + more
        room = self.memory_of(name, held)
        # Keys that were put back, or that some were chosen from, do not end where the memory does.
        if room is held or total > room.shape[2]:
            room = memory(held, (*held.shape[:2], 2 * total, *held.shape[3:]), held.dtype)
            room.narrow(2, 0, tokens).copy_(held)
        room.narrow(2, tokens, more).copy_(new)
        self.rooms[name] = room.narrow(2, 0, total), room
        return self.rooms[name][0]

    def store(self, keys: Keys) -> None:
        self.stored = compact(keys)

    def memory_of(self, name: str, fact: Tensor) -> Tensor:
        given, room = self.rooms.get(name, (None, fact))
        return room if given is fact else fact

    def __copy__(self) -> "GrowingCache":
        """A cache that goes its own way from here, with memory of its own for what comes."""
        twin = type(self)()
        twin.stored, twin.settled = self.stored, self.settled
        return twin
