"""KV caches: Keys that take in the next tokens. Growing, static and rolling ones differ in storage, not in truth."""

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
    """Keys that grow by concatenation: no limit, no setting; memory is copied at every step."""

    def __init__(self) -> None:
        self.keys: Keys | None = None

    def extend(self, new: Keys) -> Keys:
        self.keys = new if self.keys is None else join(self.keys, new)
        return self.keys


class SlotCache:
    """Keys in a fixed number of slots: shapes never change, so that decoding is one compiled graph.

    The token whose order is n lies in slot n; in a rolling cache in slot n modulo the slots, over the oldest. Padding
    has order -1 and goes to one extra slot, which no query ever sees.

    slots    how many tokens are held
    rolling  whether the newest tokens overwrite the oldest; only right under a window mask: hold at least
             window + chunk - 1 slots for chunks of that many tokens

    Raises ValueError when tokens come that no slot is left for.
    """

    def __init__(self, slots: int, *, rolling: bool = False) -> None:
        if slots < 1:
            raise ValueError(f"a cache needs at least one slot, got {slots}")
        self.slots, self.rolling = slots, rolling
        self.keys: Keys | None = None

    def extend(self, new: Keys) -> Keys:
        self.check_room(new)
        keys = self.empty_like(new) if self.keys is None else self.keys
        batch, order = new.k.shape[0], new.at.order.expand(new.k.shape[0], -1)
        slot = order % self.slots if self.rolling else order
        slot = torch.where(order < 0, self.slots, slot)  # [B, T]
        at = Positions(
            coords=place(keys.at.coords, slot, new.at.coords.expand(batch, -1, -1), 1),
            order=place(keys.at.order, slot, order, 1),
            document=None
            if keys.at.document is None
            else place(keys.at.document, slot, documents(new.at).expand(batch, -1), 1),
            length=new.at.length,
            unit_step=new.at.unit_step and keys.at.unit_step,
        )
        self.keys = Keys(
            place(keys.k, slot, new.k, 2),
            place(keys.v, slot, new.v, 2),
            at,
            {name: place(keys.memo[name], slot, tensor, 2) for name, tensor in new.memo.items()},
        )
        return self.keys

    def empty_like(self, new: Keys) -> Keys:
        def room(x: Tensor, axis: int, fill: int = 0) -> Tensor:
            shape = list(x.shape)
            shape[0], shape[axis] = new.k.shape[0], self.slots + 1
            return x.new_full(shape, fill)

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

    def next(self, tokens: int, device: torch.device | None = None) -> Positions:
        """The positions of the next `tokens` tokens: each row goes on after its own last one."""
        if self.at is None:
            return Positions.count(tokens, device=device)
        return self.at.next(tokens)


def join(old: Keys, new: Keys) -> Keys:
    """The keys of both, the new ones behind the old ones."""
    batch = new.k.shape[0]
    one_document = old.at.document is None and new.at.document is None

    def cat(a: Tensor, b: Tensor) -> Tensor:
        shared = a.shape[0] == b.shape[0]
        return torch.cat((a, b), 1) if shared else torch.cat((spread(a, batch), spread(b, batch)), 1)

    follows = old.at.contiguous and new.at.contiguous and old.at.unit_step and new.at.unit_step
    follows = follows and old.at.extent is not None and new.at.extent == old.at.extent + new.at.tokens
    at = Positions(
        coords=cat(old.at.coords, new.at.coords),
        order=cat(old.at.order, new.at.order),
        document=None if one_document else cat(documents(old.at), documents(new.at)),
        length=new.at.length,
        contiguous=follows,
        unit_step=old.at.unit_step and new.at.unit_step,
        extent=None if old.at.extent is None or new.at.extent is None else max(old.at.extent, new.at.extent),
    )
    memo = {name: torch.cat((old.memo[name], tensor), 2) for name, tensor in new.memo.items()}
    return Keys(torch.cat((old.k, new.k), 2), torch.cat((old.v, new.v), 2), at, memo)


def documents(at: Positions) -> Tensor:
    """The document of each token; 0 where there is only one."""
    return torch.zeros_like(at.order) if at.document is None else at.document


def spread(x: Tensor, batch: int) -> Tensor:
    return x.expand(batch, *x.shape[1:])


def place(into: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """`into` with new[b, ..., t, ...] at slot[b, t] along `axis`, as a new tensor."""
    index = slot.view(slot.shape[0], *(1,) * (axis - 1), slot.shape[1], *(1,) * (new.dim() - axis - 1)).expand_as(new)
    # The first chunk may have held whole coordinates, and this one fractions.
    dtype = torch.promote_types(into.dtype, new.dtype)
    return into.to(dtype).scatter(axis, index, new.to(dtype))
