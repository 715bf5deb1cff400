"""Keys in a fixed number of slots, static and rolling."""

from dataclasses import replace

import torch
from torch import Tensor

from posenc import checks
from posenc.cache.columns import compact
from posenc.cache.held import check_behind, check_rows, documents, larger, span
from posenc.cache.layer import LayerCache, turned_of
from posenc.cache.memory import memory, scatter_in_place, scattered, slot_values
from posenc.cache.operations import cropped, extent_of
from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.watched import gpu_checks, is_watched, may_be_read


class SlotCache(checks.ChecksArguments, LayerCache):
    """Keys in a fixed number of slots: shapes never change, so that decoding is one compiled graph.

    The token whose order is n lies in slot n; in a rolling cache in slot n modulo the slots, over the oldest. Padding
    has order -1 and goes to one extra slot, which no query ever sees.

    Without gradients the slots are written in place, so that a step costs what its tokens cost, however many slots
    there are: the keys that an earlier `extend` gave are then the same memory, and hold the new tokens too. Gradients,
    and whoever follows what is computed, may need the earlier keys as they were: with them every step makes new ones.

    slots    how many tokens are held
    rolling  whether the newest tokens overwrite the oldest; only right under a window mask: hold at least
             window + chunk - 1 slots for chunks of that many tokens

    Raises ValueError when tokens come that no slot is left for; inside a compiled graph, where data cannot be looked
    at, the write itself is out of range and fails. Attention has it raised, too, where a rolling cache has no slots for
    all that its mask lets a token see.
    """

    def __init__(self, slots: int, *, rolling: bool = False) -> None:
        if checks.whole("slots", slots) < 1:
            raise ValueError(f"a cache needs at least one slot, got {slots}")
        super().__init__()
        self.slots, self.rolling = slots, rolling
        # Whether the memory of keys is this cache's alone, and not saved for a gradient.
        self.exclusive = True

    def take_in(self, new: Keys) -> Keys:
        self.check_room(new.at)
        if self.keys is not None:
            check_rows(self.keys, new)
        recording = torch.is_grad_enabled() or (not torch.compiler.is_compiling() and is_watched())
        in_place = (self.exclusive or self.keys is None) and not recording
        log = self.undo_log if in_place and self.keys is not None else None

        def scatter(into: Tensor, slot: Tensor, new: Tensor, axis: int, empty: int = 0) -> Tensor:
            if log is not None and slot.shape[0] in (1, into.shape[0]):
                log.append((into, slot, slot_values(into, slot, axis) if self.rolling else empty, axis))
            return (scatter_in_place if in_place else scattered)(into, slot, new, axis)

        keys = self.empty_like(new) if self.keys is None else self.keys
        order, slot = new.at.order, self.slot_of(new.at.order)
        one_document = keys.at.document is None and new.at.document is None
        at = Positions(
            coords=scatter(keys.at.coords, slot, new.at.coords, 1),
            order=scatter(keys.at.order, slot, order, 1, -1),
            document=None if one_document else scatter(documents(keys.at), slot, documents(new.at), 1),
            horizon=new.at.horizon,
            unit_step=new.at.unit_step and keys.at.unit_step,
            # A number that changes with every token would compile a graph anew.
            extent=None if torch.compiler.is_compiling() else larger(keys.at.extent, new.at.extent),
        )
        turned = None
        if keys.turned is not None or new.turned is not None:
            # In memory of its own: where they stand is written beside it.
            before = keys.at.coords.clone() if keys.turned is None else keys.turned
            turned = scatter(before, slot, turned_of(new), 1)
        settled = None if turned is None else self.settled_of(self.keys)
        memo = {name: scatter(keys.memo[name], slot, fact, 2) for name, fact in new.memo.items()}
        k, v = scatter(keys.k, slot, new.k, 2), scatter(keys.v, slot, new.v, 2)
        self.stored = Keys(k, v, at, memo, turned=turned, moves=new.moves)
        if settled is not None:
            self.settled = self.stored, scatter(settled, slot, new.k, 2)
        self.exclusive = not recording
        return self.stored

    def slot_of(self, order: Tensor) -> Tensor:
        """The slot of tokens of some order, [B or 1, T]."""
        # A slot that does not exist must not be the one for padding.
        slot = order % self.slots if self.rolling else torch.where(order < self.slots, order, order + 1)
        return torch.where(order < 0, self.slots, slot)

    def crop(self, tokens: int | Tensor) -> None:
        if self.rolling and self.keys is not None and int(self.keys.at.order.max()) >= self.slots:
            if cropped(self.keys.at, tokens, self.batch) is not self.keys.at:
                raise ValueError(
                    f"a rolling cache of {self.slots} slots has written over the oldest tokens, and cannot go back; "
                    f"use a cache that grows, or a static one"
                )
        super().crop(tokens)

    def store(self, keys: Keys) -> None:
        slot = self.slot_of(keys.at.order)
        here = torch.arange(self.slots + 1, device=slot.device)
        if slot.shape[1] == self.slots + 1 and bool(((slot == here) | (keys.at.order < 0)).all()):
            self.hold(replace(keys, at=keys.at.changed(extent=extent_of(keys.at))))
            return
        held = compact(keys)
        if held is None:
            self.stored = None
            return
        if self.rolling and (wide := span(held.at)[0]) > self.slots:
            raise ValueError(
                f"a rolling cache of {self.slots} slots holds as many tokens in a row, and these are {wide} apart; "
                f"forget more of them, or use a cache that grows"
            )
        fresh = SlotCache(self.slots, rolling=self.rolling)
        self.hold(fresh.take_in(held))

    def __copy__(self) -> "SlotCache":
        """A cache that goes its own way from here: whichever writes first has memory of its own."""
        twin = SlotCache(self.slots, rolling=self.rolling)
        twin.stored, twin.settled, twin.exclusive, self.exclusive = self.stored, self.settled, False, False
        return twin

    def hold(self, keys: Keys) -> None:
        # What is written into inference mode's own tensors leaves no trace.
        self.stored, self.exclusive = keys, self.exclusive and not keys.k.is_inference()

    def empty_like(self, new: Keys) -> Keys:
        def room(x: Tensor, axis: int, fill: int = 0) -> Tensor:
            shape = list(x.shape)
            shape[0], shape[axis] = new.k.shape[0], self.slots + 1
            return memory(x, shape, x.dtype).fill_(fill)

        at = Positions(
            coords=room(new.at.coords, 1),
            order=room(new.at.order, 1, -1),
            document=None if new.at.document is None else room(new.at.document, 1),
            unit_step=new.at.unit_step,
            extent=0,
        )
        return replace(new.each(lambda name, fact: room(fact, 2)), at=at, query_memo={}, turned=None)

    def check(self, at: Positions, mask: Mask) -> None:
        """Raises ValueError unless these tokens come behind what it holds, with slots for all that they may see."""
        self.check_room(at)
        check_behind(self.keys, at, mask)
        if not self.rolling:
            return
        if mask.window is None:
            raise ValueError(
                f"a rolling cache of {self.slots} slots forgets what came before, and the mask has no window; give "
                f"mask=masks.window(size) of at most {self.slots} tokens, or a cache that is not rolling"
            )
        if self.slots < mask.window:
            raise ValueError(
                f"a rolling cache of {self.slots} slots cannot hold a window of {mask.window} tokens; give it at least "
                f"window + chunk - 1 slots"
            )
        chunk, last = span(at)
        if self.slots >= mask.window + chunk - 1 or (self.keys is None and chunk <= self.slots):
            return
        if last is None or last >= self.slots:
            raise ValueError(
                f"a chunk of {chunk} tokens writes over tokens that its first ones see: a rolling cache under a window "
                f"of {mask.window} needs {mask.window + chunk - 1} slots for it, got {self.slots}; give it as many, or "
                f"feed chunks of at most {self.slots - mask.window + 1}"
            )

    def check_room(self, at: Positions) -> None:
        if self.rolling:
            if at.tokens > self.slots:
                raise ValueError(
                    f"{at.tokens} tokens came at once to a rolling cache of {self.slots} slots; give it at least "
                    f"window + chunk - 1 slots or feed shorter chunks"
                )
            return
        extent = at.extent if at.contiguous and at.unit_step else None
        if extent is None and may_be_read(at.order):
            if gpu_checks(at.order, lambda: at.order < self.slots, f"a token has no slot in a cache of {self.slots}"):
                return
            extent = int(at.order.max()) + 1
        if extent is not None and extent > self.slots:
            raise ValueError(
                f"the token of order {extent - 1} has no slot in a cache of {self.slots}; "
                f"make the cache with at least {extent} slots"
            )
