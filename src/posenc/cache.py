"""KV caches: Keys that take in the next tokens. Growing, static and rolling ones differ in storage, not in truth."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from posenc.encoding import Keys
from posenc.positions import Positions


class LayerCache(Protocol):
    """What attention needs of a cache: take in the keys of new tokens, and give all keys to attend to."""

    keys: Keys | None

    def extend(self, new: Keys) -> Keys: ...


class GrowingCache:
    """Keys that grow: no limit, no setting.

    Without gradients what is remembered lies in memory with room for as many tokens again, so that a step copies its
    own tokens and seldom all; what an earlier `extend` gave stays as it was. With gradients, and inside a compiled
    graph, every step makes new tensors.
    """

    def __init__(self) -> None:
        self.keys: Keys | None = None
        self.rooms: dict[str, Room] = {}

    def extend(self, new: Keys) -> Keys:
        if self.keys is None:
            self.keys = new
            return new
        old = self.keys
        check_rows(old, new)
        roomy = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        memo = {f"memo {name}": (old.memo[name], fact) for name, fact in new.memo.items()}
        grown = {
            name: self.rooms.setdefault(name, Room()).append(held, more) if roomy else torch.cat((held, more), 2)
            for name, (held, more) in {"k": (old.k, new.k), "v": (old.v, new.v), **memo}.items()
        }
        facts = {name: grown[f"memo {name}"] for name in new.memo}
        self.keys = Keys(grown["k"], grown["v"], join(old.at, new.at, new.k.shape[0]), facts)
        return self.keys


class Room:
    """Memory of a fact of tokens [B, H, S, ...], with room behind them for tokens to come."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.used = 0

    def append(self, held: Tensor, new: Tensor) -> Tensor:
        """The tokens held and behind them the new ones [B, H, T, ...], moved only when there is no room left."""
        if held.dtype != new.dtype:
            return torch.cat((held, new), 2)
        tokens, total = held.shape[2], held.shape[2] + new.shape[2]
        if self.memory is None or not self.ends_with(held) or total > self.memory.shape[2]:
            self.memory = memory(held, (*held.shape[:2], 2 * total, *held.shape[3:]), held.dtype)
            self.memory[:, :, :tokens] = held
        self.memory[:, :, tokens:total] = new
        self.used = total
        return self.memory[:, :, :total]

    def ends_with(self, held: Tensor) -> bool:
        """Whether these are all the tokens in memory: keys that somebody put back, or chose from, are not."""
        assert self.memory is not None
        mine = self.memory[:, :, : self.used]
        return mine.shape == held.shape and mine.stride() == held.stride() and mine.data_ptr() == held.data_ptr()


class SlotCache:
    """Keys in a fixed number of slots: shapes never change, so that decoding is one compiled graph.

    The token whose order is n lies in slot n; in a rolling cache in slot n modulo the slots, over the oldest. Padding
    has order -1 and goes to one extra slot, which no query ever sees.

    Without gradients the slots are written in place, so that a step costs what its tokens cost, however many slots
    there are: the keys that an earlier `extend` gave are then the same memory, and hold the new tokens too. Gradients
    may need the earlier keys as they were, so with them every step makes new ones.

    slots    how many tokens are held
    rolling  whether the newest tokens overwrite the oldest; only right under a window mask: hold at least
             window + chunk - 1 slots for chunks of that many tokens

    Raises ValueError when tokens come that no slot is left for; inside a compiled graph, where data cannot be looked
    at, the write itself is out of range and fails.
    """

    def __init__(self, slots: int, *, rolling: bool = False) -> None:
        if slots < 1:
            raise ValueError(f"a cache needs at least one slot, got {slots}")
        self.slots, self.rolling = slots, rolling
        self.keys: Keys | None = None
        self.recorded = False

    def extend(self, new: Keys) -> Keys:
        self.check_room(new)
        if self.keys is not None:
            check_rows(self.keys, new)
        # What was made while gradients were recorded may be saved for them.
        recording = torch.is_grad_enabled()
        put = place if recording or self.recorded else overwrite
        keys = self.empty_like(new) if self.keys is None else self.keys
        order = new.at.order
        # A slot that does not exist must not be the one for padding.
        slot = order % self.slots if self.rolling else torch.where(order < self.slots, order, order + 1)
        slot = torch.where(order < 0, self.slots, slot)  # [B or 1, T]
        at = Positions(
            coords=put(keys.at.coords, slot, new.at.coords, 1),
            order=put(keys.at.order, slot, order, 1),
            document=None if keys.at.document is None else put(keys.at.document, slot, documents(new.at), 1),
            length=new.at.length,
            unit_step=new.at.unit_step and keys.at.unit_step,
        )
        self.keys = Keys(
            put(keys.k, slot, new.k, 2),
            put(keys.v, slot, new.v, 2),
            at,
            {name: put(keys.memo[name], slot, tensor, 2) for name, tensor in new.memo.items()},
        )
        self.recorded = recording
        return self.keys

    def empty_like(self, new: Keys) -> Keys:
        def room(x: Tensor, axis: int, fill: int = 0) -> Tensor:
            shape = list(x.shape)
            shape[0], shape[axis] = new.k.shape[0], self.slots + 1
            return memory(x, shape, x.dtype).fill_(fill)

        at = Positions(
            coords=room(new.at.coords, 1),
            order=room(new.at.order, 1, -1),
            # A later chunk may bring documents although the first had only one.
            document=room(documents(new.at), 1),
            unit_step=new.at.unit_step,
        )
        return Keys(room(new.k, 2), room(new.v, 2), at, {name: room(t, 2) for name, t in new.memo.items()})

    def check_room(self, new: Keys) -> None:
        if self.rolling:
            if new.at.tokens > self.slots:
                raise ValueError(
                    f"{new.at.tokens} tokens came at once to a rolling cache of {self.slots} slots; give it at least "
                    f"window + chunk - 1 slots or feed shorter chunks"
                )
            return
        extent = new.at.extent if new.at.contiguous and new.at.unit_step else None
        if extent is None and not torch.compiler.is_compiling():
            extent = int(new.at.order.max()) + 1
        if extent is not None and extent > self.slots:
            raise ValueError(
                f"the token of order {extent - 1} has no slot in a cache of {self.slots}; "
                f"make the cache with at least {extent} slots"
            )


class Cache:
    """The KV cache of a model: one layer cache for each attention layer, and where the last token stood.

    Without `slots` it grows; with `slots` it is static, and with `rolling` it keeps the newest only.
    """

    def __init__(self, layers: int, *, slots: int | None = None, rolling: bool = False) -> None:
        if rolling and slots is None:
            raise ValueError("a rolling cache needs a number of slots; give slots=window + chunk - 1")
        self.layers: list[LayerCache] = [
            GrowingCache() if slots is None else SlotCache(slots, rolling=rolling) for _ in range(layers)
        ]
        self.at: Positions | None = None
        self.extent: int | None = None

    def took(self, at: Positions) -> None:
        """Note where the tokens stood that went into the layers: those to come go on from the last one of each row."""
        self.at = replace(last_of(at), extent=None)
        self.extent = None if torch.compiler.is_compiling() else at.extent

    def next(self, tokens: int, device: torch.device | None = None) -> Positions:
        """The positions of the next `tokens` tokens: each row goes on after its own last one."""
        if self.at is None:
            return Positions.count(tokens, device=device)
        at = self.at.next(tokens)
        # A number that changes with every token would compile a graph anew: there, positions are tensors alone.
        if torch.compiler.is_compiling() or self.extent is None:
            return at
        return replace(at, extent=self.extent + tokens)


def last_of(at: Positions) -> Positions:
    """Where the last token of each row stands, [B or 1, 1]."""
    last = at.order.argmax(1, keepdim=True)
    coords = at.coords.expand(last.shape[0], -1, -1) if at.coords.shape[0] == 1 else at.coords
    last_in_coords = last.expand(coords.shape[0], 1)[..., None].expand(-1, -1, at.axes)
    return replace(
        at,
        coords=coords.gather(1, last_in_coords),
        order=at.order.gather(1, last),
        document=None if at.document is None else at.document.expand(last.shape[0], -1).gather(1, last),
        _tables={},
    )


def join(old: Positions, new: Positions, batch: int) -> Positions:
    """The positions of both, the new tokens behind the old ones."""

    def cat(a: Tensor, b: Tensor) -> Tensor:
        shared = a.shape[0] == b.shape[0]
        return torch.cat((a, b), 1) if shared else torch.cat((spread(a, batch), spread(b, batch)), 1)

    one_document = old.document is None and new.document is None
    follows = old.contiguous and new.contiguous and old.unit_step and new.unit_step
    follows = follows and old.extent is not None and new.extent == old.extent + new.tokens
    return Positions(
        coords=cat(old.coords, new.coords),
        order=cat(old.order, new.order),
        document=None if one_document else cat(documents(old), documents(new)),
        length=new.length,
        contiguous=follows,
        unit_step=old.unit_step and new.unit_step,
        extent=None if old.extent is None or new.extent is None else max(old.extent, new.extent),
    )


def check_rows(held: Keys, new: Keys) -> None:
    """Raises ValueError unless the new keys are of as many rows and heads as those that a cache holds."""
    if held.k.shape[:2] != new.k.shape[:2]:
        raise ValueError(
            f"the cache holds keys of {held.k.shape[0]} rows and {held.k.shape[1]} heads, got new ones of "
            f"{new.k.shape[0]} and {new.k.shape[1]}; start a new cache for another batch"
        )


def documents(at: Positions) -> Tensor:
    """The document of each token; 0 where there is only one."""
    return torch.zeros_like(at.order) if at.document is None else at.document


def spread(x: Tensor, batch: int) -> Tensor:
    return x.expand(batch, *x.shape[1:])


def place(into: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """`into` with new[b, ..., t, ...] at slot[b, t] along `axis`, as a new tensor."""
    # The first chunk may have held whole coordinates, and this one fractions.
    dtype = torch.promote_types(into.dtype, new.dtype)
    return overwrite(memory(into, into.shape, dtype).copy_(into), slot, new, axis)


def overwrite(into: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """The same, in the memory of `into` where its dtype can hold the new values."""
    if torch.promote_types(into.dtype, new.dtype) != into.dtype:
        return place(into, slot, new, axis)
    new = new.to(into.dtype).expand(into.shape[0], *new.shape[1:])
    if slot.shape[0] == 1:
        return into.index_copy_(axis, slot[0], new)
    index = slot.view(slot.shape[0], *(1,) * (axis - 1), slot.shape[1], *(1,) * (new.dim() - axis - 1)).expand_as(new)
    return into.scatter_(axis, index, new)


def memory(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory of a shape on the device of `like`, to be written in every mode: inference mode's own is not."""
    with torch.inference_mode(False):
        return like.new_empty(shape, dtype=dtype)
