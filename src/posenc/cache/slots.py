"""The cache with a fixed number of slots, static or rolling. A rolling one forgets in `take_in`."""

from dataclasses import replace

import torch
from torch import Tensor

from posenc import checks
from posenc.cache.cached_positions import check_behind, check_rows, document_ids, joint_extent, order_span
from posenc.cache.columns import compact
from posenc.cache.layer import LayerCache, turned_coords
from posenc.cache.memory import new_memory, scatter, scatter_in_place, slot_values
from posenc.cache.operations import crop_positions, extent_of
from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import assert_on_gpu, is_watched, may_be_read


class SlotCache(checks.ChecksArguments, LayerCache):
    """A cache with a fixed number of slots: shapes never change, so decoding is one compiled graph.

    The token of order n lies in slot n. In a rolling cache it lies in slot n % slots, and overwrites (forgets) the
    token of order n - slots. Padding has order -1 and goes to one extra slot, which no query ever sees.

    Without gradients, slots are written in place, so the cost of a step does not depend on the number of slots, and
    keys from an earlier `extend` share the memory and see the new tokens. With gradients, modes or transforms, every
    step makes new tensors.

    slots    number of tokens in the cache
    rolling  whether the newest tokens overwrite the oldest; only right under a window mask, with at least
             window + chunk - 1 slots for chunks of that many tokens

    Raises ValueError for tokens without a slot (inside a compiled graph the write itself fails), and in attention for a
    rolling cache with too few slots for the window of the mask.
    """

    def __init__(self, slots: int, *, rolling: bool = False) -> None:
        if checks.whole("slots", slots) < 1:
            raise ValueError(f"a cache needs at least one slot, got {slots}")
        super().__init__()
        self.slots, self.rolling = slots, rolling
        # Whether no other cache shares the memory of the keys, and no gradient needs it.
        self.exclusive = True

    def take_in(self, new: Keys) -> Keys:
        self.check_room(new.at)
        if self.keys is not None:
            check_rows(self.keys, new)
        needs_copies = torch.is_grad_enabled() or (not torch.compiler.is_compiling() and is_watched())
        in_place = (self.exclusive or self.keys is None) and not needs_copies
        log = self.undo_log if in_place and self.keys is not None else None

        def write_slots(target: Tensor, slot: Tensor, new: Tensor, axis: int, empty: int = 0) -> Tensor:
            if log is not None and slot.shape[0] in (1, target.shape[0]):
                log.append((target, slot, slot_values(target, slot, axis) if self.rolling else empty, axis))
            return (scatter_in_place if in_place else scatter)(target, slot, new, axis)

        keys = self.empty_like(new) if self.keys is None else self.keys
        order, slot = new.at.order, self.slot_of(new.at.order)
        one_document = keys.at.document is None and new.at.document is None
        at = Positions(
            coords=write_slots(keys.at.coords, slot, new.at.coords, 1),
            order=write_slots(keys.at.order, slot, order, 1, -1),
            document=None if one_document else write_slots(document_ids(keys.at), slot, document_ids(new.at), 1),
            horizon=new.at.horizon,
            unit_step=new.at.unit_step and keys.at.unit_step,
            # A number that changes with every token would compile a graph anew.
            extent=None if torch.compiler.is_compiling() else joint_extent(keys.at.extent, new.at.extent),
        )
        rotated_at = None
        if keys.turned is not None or new.turned is not None:
            # A copy, because the scatter into `coords` above may share this memory.
            old_turned = keys.at.coords.clone() if keys.turned is None else keys.turned
            rotated_at = write_slots(old_turned, slot, turned_coords(new), 1)
        rotated_k = None if rotated_at is None else self.current_k_of(self.keys)
        memo = {name: write_slots(keys.memo[name], slot, fact, 2) for name, fact in new.memo.items()}
        k, v = write_slots(keys.k, slot, new.k, 2), write_slots(keys.v, slot, new.v, 2)
        self.stored_keys = Keys(k, v, at, memo, turned=rotated_at, moves=new.moves)
        if rotated_k is not None:
            self.current_k = self.stored_keys, write_slots(rotated_k, slot, new.k, 2)
        self.exclusive = not needs_copies
        return self.stored_keys

    def slot_of(self, order: Tensor) -> Tensor:
        """Return the slots [B or 1, T] of tokens. A rolling cache takes order % slots: new tokens replace old ones."""
        # An order beyond the slots must fail, not land in the slot for padding.
        slot = order % self.slots if self.rolling else torch.where(order < self.slots, order, order + 1)
        return torch.where(order < 0, self.slots, slot)

    def crop(self, tokens: int | Tensor) -> None:
        if self.rolling and self.keys is not None and int(self.keys.at.order.max()) >= self.slots:
            if crop_positions(self.keys.at, tokens, self.batch) is not self.keys.at:
                raise ValueError(
                    f"a rolling cache of {self.slots} slots has overwritten its oldest tokens, and cannot go back; "
                    f"use a growing cache, or a static one"
                )
        super().crop(tokens)

    def store(self, keys: Keys) -> None:
        slot = self.slot_of(keys.at.order)
        own_slot = torch.arange(self.slots + 1, device=slot.device)
        if slot.shape[1] == self.slots + 1 and bool(((slot == own_slot) | (keys.at.order < 0)).all()):
            self.set_keys(replace(keys, at=keys.at.with_facts(extent=extent_of(keys.at))))
            return
        remaining = compact(keys)
        if remaining is None:
            self.stored_keys = None
            return
        if self.rolling and (order_range := order_span(remaining.at)[0]) > self.slots:
            raise ValueError(
                f"a rolling cache of {self.slots} slots holds as many adjacent tokens, and these span {order_range}; "
                f"drop more of them, or use a growing cache"
            )
        empty_cache = SlotCache(self.slots, rolling=self.rolling)
        self.set_keys(empty_cache.take_in(remaining))

    def __copy__(self) -> "SlotCache":
        """Return an independent cache: the first of the two to write copies the memory."""
        twin = SlotCache(self.slots, rolling=self.rolling)
        twin.stored_keys, twin.current_k = self.stored_keys, self.current_k
        twin.exclusive = self.exclusive = False
        return twin

    def set_keys(self, keys: Keys) -> None:
        # Writes to tensors made in inference mode are not tracked by version counters.
        self.stored_keys, self.exclusive = keys, self.exclusive and not keys.k.is_inference()

    def empty_like(self, new: Keys) -> Keys:
        def empty_fact(x: Tensor, axis: int, fill: int = 0) -> Tensor:
            shape = list(x.shape)
            shape[0], shape[axis] = new.k.shape[0], self.slots + 1
            return new_memory(x, shape, x.dtype).fill_(fill)

        at = Positions(
            coords=empty_fact(new.at.coords, 1),
            order=empty_fact(new.at.order, 1, -1),
            document=None if new.at.document is None else empty_fact(new.at.document, 1),
            unit_step=new.at.unit_step,
            extent=0,
        )
        return replace(new.each(lambda name, fact: empty_fact(fact, 2)), at=at, query_memo={}, turned=None)

    def check(self, at: Positions, mask: Mask) -> None:
        """Raise ValueError unless tokens follow the cached ones and all that they see has slots."""
        self.check_room(at)
        check_behind(self.keys, at, mask)
        if not self.rolling:
            return
        if mask.window is None:
            raise ValueError(
                f"a rolling cache of {self.slots} slots forgets older tokens, and the mask has no window; give "
                f"mask=masks.window(size) of at most {self.slots} tokens, or a cache that is not rolling"
            )
        if self.slots < mask.window:
            raise ValueError(
                f"a rolling cache of {self.slots} slots cannot hold a window of {mask.window} tokens; give it at least "
                f"window + chunk - 1 slots"
            )
        chunk, last = order_span(at)
        if self.slots >= mask.window + chunk - 1 or (self.keys is None and chunk <= self.slots):
            return
        if last is None or last >= self.slots:
            raise ValueError(
                f"a chunk of {chunk} tokens overwrites tokens that its first ones see: a rolling cache under a window "
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
            if assert_on_gpu(
                at.order, lambda: at.order < self.slots, f"a token has no slot in a cache of {self.slots}"
            ):
                return
            extent = int(at.order.max()) + 1
        if extent is not None and extent > self.slots:
            raise ValueError(
                f"the token of order {extent - 1} has no slot in a cache of {self.slots}; "
                f"make the cache with at least {extent} slots"
            )
