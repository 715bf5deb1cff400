"""KV caches: Keys that take in the next tokens. Growing, static and rolling ones differ in storage, not in truth."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from posenc import checks
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Counted, Positions, of_token, positions_for
from posenc.shared_tables import once, version
from posenc.watched import is_watched, may_be_read

WHOLE = (torch.int64, torch.int32)


class LayerCache(Protocol):
    """What attention needs of a cache: take in the keys of new tokens, and give all keys to attend to."""

    keys: Keys | None

    def check(self, at: Positions, mask: Mask) -> None:
        """Raises ValueError unless these tokens come behind what it holds, and it can hold all that they may see."""
        ...

    def extend(self, new: Keys) -> Keys: ...


def held_by(cache: LayerCache | None) -> Positions | None:
    """Where the tokens stand that the cache of a layer holds. Raises ValueError for what is no such cache."""
    if cache is None:
        return None
    if not hasattr(cache, "check"):
        raise ValueError(
            f"attention takes the cache of one layer, got {checks.shown(cache)}; "
            f"make one with posenc.cache.GrowingCache(), or take one of a model's cache.layers"
        )
    return None if cache.keys is None else cache.keys.at


class GrowingCache:
    """Keys that grow: no limit, no setting.

    Without gradients what is remembered lies in memory with room for as many tokens again, so that a step copies its
    own tokens and seldom all; what an earlier `extend` gave stays as it was. With gradients, and inside a compiled
    graph, every step makes new tensors.
    """

    def __init__(self) -> None:
        self.keys: Keys | None = None
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
        grown = self.in_room if roomy else in_new_memory
        memo = {name: grown(f"memo {name}", old.memo[name], fact) for name, fact in new.memo.items()}
        at = joined(old.at, new.at, new.k.shape[0])
        self.keys = Keys(grown("k", old.k, new.k), grown("v", old.v, new.v), at, memo)
        return self.keys

    def in_room(self, fact: str, held: Tensor, new: Tensor) -> Tensor:
        """A fact of the tokens held and of the new ones behind them."""
        room = self.rooms.get(fact)
        if room is None:
            room = self.rooms[fact] = Room()
        return room.append(held, new)

    def crop(self, tokens: int | Tensor) -> None:
        """Forget the tokens whose order is `tokens` or later (a number, or [B]: one for each row)."""
        if self.keys is None or (kept := cropped(self.keys, tokens)) is self.keys:
            return
        held = (kept.at.order >= 0).any(0).nonzero()
        if held.numel() == 0:
            self.keys = None
            return
        first = slice(0, int(held.max()) + 1)
        # Tokens in a row that all rows keep are still tokens in a row.
        at, marked = self.keys.at.rows(first), kept.at.rows(first)
        facts = {name: fact[:, :, first] for name, fact in kept.memo.items()}
        at = at if at.order.equal(marked.order) else marked
        self.keys = Keys(kept.k[:, :, first], kept.v[:, :, first], at, facts)

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, [any number]: a row may come several times, or not at all."""
        if self.keys is not None:
            self.keys = rows_of(self.keys, rows)


def in_new_memory(fact: str, held: Tensor, new: Tensor) -> Tensor:
    return torch.cat((held, new), 2)


class Room:
    """Memory of a fact of tokens [B, H, S, ...], with room behind them for tokens to come."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.given: Tensor | None = None

    def append(self, held: Tensor, new: Tensor) -> Tensor:
        """The tokens held and behind them the new ones [B, H, T, ...], moved only when there is no room left."""
        if held.dtype != new.dtype:
            return torch.cat((held, new), 2)
        tokens, more = held.shape[2], new.shape[2]
        total = tokens + more
        # Keys that somebody put back, or chose from, do not end where the memory does.
        if self.memory is None or held is not self.given or total > self.memory.shape[2]:
            self.memory = memory(held, (*held.shape[:2], 2 * total, *held.shape[3:]), held.dtype)
            self.memory.narrow(2, 0, tokens).copy_(held)
        self.memory.narrow(2, tokens, more).copy_(new)
        self.given = self.memory.narrow(2, 0, total)
        return self.given


class SlotCache:
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

    @checks.annotated
    def __init__(self, slots: int, *, rolling: bool = False) -> None:
        if checks.whole("slots", slots) < 1:
            raise ValueError(f"a cache needs at least one slot, got {slots}")
        self.slots, self.rolling = slots, rolling
        self.keys: Keys | None = None
        # What the last step wrote, unless it may be saved for a gradient: all else that is put here is somebody's.
        self.written: Keys | None = None
        # How often the memory of keys had been written when they were given.
        self.versions: WeakKeyDictionary[Keys, int] = WeakKeyDictionary()

    def extend(self, new: Keys) -> Keys:
        self.check_room(new.at)
        if self.keys is not None:
            check_rows(self.keys, new)
        recording = torch.is_grad_enabled() or (not torch.compiler.is_compiling() and is_watched())
        self.check_whole()
        own = self.keys is None or self.keys is self.written
        scatter = scatter_in_place if own and not recording else scattered
        keys = self.empty_like(new) if self.keys is None else self.keys
        order = new.at.order
        # A slot that does not exist must not be the one for padding.
        slot = order % self.slots if self.rolling else torch.where(order < self.slots, order, order + 1)
        slot = torch.where(order < 0, self.slots, slot)  # [B or 1, T]
        one_document = keys.at.document is None and new.at.document is None
        at = Positions(
            coords=scatter(keys.at.coords, slot, new.at.coords, 1),
            order=scatter(keys.at.order, slot, order, 1),
            document=None if one_document else scatter(documents(keys.at), slot, documents(new.at), 1),
            horizon=new.at.horizon,
            unit_step=new.at.unit_step and keys.at.unit_step,
            # A number that changes with every token would compile a graph anew.
            extent=None if torch.compiler.is_compiling() else larger(keys.at.extent, new.at.extent),
        )
        self.keys = Keys(
            scatter(keys.k, slot, new.k, 2),
            scatter(keys.v, slot, new.v, 2),
            at,
            {name: scatter(keys.memo[name], slot, tensor, 2) for name, tensor in new.memo.items()},
        )
        self.written = None if recording else self.keys
        return self.given(self.keys)

    def crop(self, tokens: int | Tensor) -> None:
        """Forget the tokens whose order is `tokens` or later (a number, or [B]: one for each row).

        Raises ValueError for a rolling cache that has written over tokens which would be seen again.
        """
        if self.keys is None or (kept := cropped(self.keys, tokens)) is self.keys:
            return
        if self.rolling and int(self.keys.at.order.max()) >= self.slots:
            raise ValueError(
                f"a rolling cache of {self.slots} slots has written over the oldest tokens, and cannot go back; "
                f"use a cache that grows, or a static one"
            )
        self.keys = self.mine(kept)

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, [any number]: a row may come several times, or not at all."""
        if self.keys is not None:
            self.keys = self.mine(rows_of(self.keys, rows))

    def __copy__(self) -> "SlotCache":
        """A cache that goes its own way from here: whichever writes first has memory of its own."""
        twin = SlotCache(self.slots, rolling=self.rolling)
        twin.keys, twin.versions, self.written = self.keys, self.versions, None
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"versions": WeakKeyDictionary()}

    def given(self, keys: Keys) -> Keys:
        """Keys that somebody may put back."""
        if may_be_read(keys.k) and not keys.k.is_inference():
            self.versions[keys] = keys.k._version
        return keys

    def mine(self, keys: Keys) -> Keys:
        """The keys, as what was written last if the keys before were."""
        # What is written into inference mode's own tensors leaves no trace.
        self.written = keys if self.written is self.keys and not keys.k.is_inference() else None
        return self.given(keys)

    def check_whole(self) -> None:
        """Raises ValueError where keys of an earlier step were put back, whose memory holds later tokens by now."""
        if self.keys is None or self.keys is self.written:
            return
        version = self.versions.get(self.keys)
        if version is not None and self.keys.k._version != version:
            raise ValueError(
                "these keys are of an earlier step, and share their memory with what came after: the slots are written "
                "in place; go back with crop(tokens), or keep a copy.deepcopy of the cache"
            )

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
        return Keys(room(new.k, 2), room(new.v, 2), at, {name: room(t, 2) for name, t in new.memo.items()})

    def check(self, at: Positions, mask: Mask) -> None:
        """Raises ValueError unless these tokens come behind what it holds, with slots for all that they may see."""
        self.check_whole()
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
            extent = int(at.order.max()) + 1
        if extent is not None and extent > self.slots:
            raise ValueError(
                f"the token of order {extent - 1} has no slot in a cache of {self.slots}; "
                f"make the cache with at least {extent} slots"
            )


class Cache:
    """The KV cache of a model: one layer cache for each attention layer, and where the last token stood.

    Without `slots` it grows; with `slots` it is static, and with `rolling` it keeps the newest only.
    """

    @checks.annotated
    def __init__(self, layers: int, *, slots: int | None = None, rolling: bool = False) -> None:
        if rolling and slots is None:
            raise ValueError("a rolling cache needs a number of slots; give slots=window + chunk - 1")
        checks.whole("layers", layers, 1)
        self.layers: list[GrowingCache | SlotCache] = [
            GrowingCache() if slots is None else SlotCache(slots, rolling=rolling) for _ in range(layers)
        ]
        self.grows = slots is None
        self.at: Positions | None = None
        self.extent: int | None = None

    def __copy__(self) -> "Cache":
        """A cache that goes its own way from here; what both hold is shared until one of them writes."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), layers=[copy(layer) for layer in self.layers])
        return twin

    def crop(self, tokens: int | Tensor) -> None:
        """Forget the tokens whose order is `tokens` or later (a number, or [B]: one for each row): to go back.

        Rows may then hold different numbers of tokens; each goes on after its own last one.
        Raises ValueError for a negative number, and for a rolling cache that has written over tokens which would be
        seen again.
        """
        for layer in self.layers:
            layer.crop(tokens)
        held = self.held
        if self.at is None or held is None:
            self.at = self.extent = None
            return
        last = last_of(held)
        self.at = self.at.changed(
            coords=last.coords,
            order=last.order,
            document=None if self.at.document is None else last.document,
            contiguous=held.contiguous,
            extent=None,
        )
        self.extent = held.extent if held.contiguous else self.extent

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, [any number]: beams that were chosen; a row may come several times."""
        for layer in self.layers:
            layer.reorder(rows)
        if self.at is not None:
            self.at = self.at.batch_rows(rows)

    @property
    def held(self) -> Positions | None:
        """Where the tokens stand that the layers hold."""
        return held_by(self.layers[0])

    def took(self, at: Positions) -> None:
        """Note where the tokens stood that went into the layers: those to come go on from the last one of each row."""
        if self.grows and type(at) is Counted:
            self.at, self.extent = at, at.extent
            return
        last, before = last_of(at), self.at
        self.at = last if at.contiguous or before is None else latest(before, last)
        if torch.compiler.is_compiling():
            self.extent = None
        elif at.contiguous or before is None:
            self.extent = at.extent
        else:
            self.extent = None if at.extent is None or self.extent is None else max(self.extent, at.extent)

    def next(self, tokens: int, device: torch.device | None = None) -> Positions:
        """The positions of the next `tokens` tokens: each row goes on after its own last one."""
        if self.at is None:
            return positions_for(tokens, None, device=device)
        at = self.at.next(tokens)
        # A number that changes with every token would compile a graph anew: there, positions are tensors alone.
        if torch.compiler.is_compiling() or self.extent is None or at.extent is not None:
            return at
        return at.changed(extent=self.extent + tokens)


def span(at: Positions) -> tuple[int, int | None]:
    """Over how many orders the tokens of a row stretch at most, and the last order if it is known."""
    if at.start is not None:
        return at.tokens, at.start + at.tokens - 1
    if at.tokens == 1 or not may_be_read(at.order):
        return at.tokens, None
    first = at.order.masked_fill(at.order < 0, torch.iinfo(at.order.dtype).max).amin(1)
    last = at.order.amax(1)
    return max(int((last - first).max()) + 1, 1), int(last.max())


def last_of(at: Positions) -> Positions:
    """Where the last token of each row stands, [B or 1, 1]."""
    last = at.order.argmax(1, keepdim=True)
    return at.changed(
        coords=of_token(at.coords, last),
        order=at.order.gather(1, last),
        document=None if at.document is None else of_token(at.document, last),
        extent=None,
    )


def latest(before: Positions, last: Positions) -> Positions:
    """Where the last token of each row stands, [B or 1, 1]: before, in rows to which only padding has come."""
    nothing_came = last.order < 0
    one_document = before.document is None and last.document is None
    return last.changed(
        coords=torch.where(nothing_came[..., None], before.coords, last.coords),
        order=torch.where(nothing_came, before.order, last.order),
        document=None if one_document else torch.where(nothing_came, documents(before), documents(last)),
        unit_step=before.unit_step and last.unit_step,
    )


def cropped(keys: Keys, tokens: int | Tensor) -> Keys:
    """The keys without those whose order is `tokens` (a number, or [B]) or later: they are padding from now on.

    Raises ValueError for a negative number, and for another number of rows.
    """
    rows = keys.k.shape[0]
    limit = torch.as_tensor(tokens, device=keys.at.order.device) if of_numbers(tokens) else None
    if limit is None or limit.dim() > 1 or limit.numel() not in (1, rows) or int(limit.min()) < 0:
        raise ValueError(
            f"crop to a number of tokens, 0 or more, or to one for each of the {rows} rows, got {checks.shown(tokens)}"
        )
    order = keys.at.order
    gone = order >= limit.reshape(-1, 1)
    if not bool(gone.any()):
        return keys
    order = order.expand_as(gone).masked_fill(gone, -1)
    return replace(keys, at=keys.at.changed(order=order, contiguous=False, extent=None))


def of_numbers(tokens: object) -> bool:
    """Whether it is a whole number, or a tensor of such."""
    return checks.is_whole(tokens) or (isinstance(tokens, Tensor) and tokens.dtype in WHOLE)


def rows_of(keys: Keys, rows: Tensor) -> Keys:
    """Some rows of the batch, [any number].

    Raises ValueError for what are no numbers of rows.
    """
    held = keys.k.shape[0]
    wrong = not isinstance(rows, Tensor) or rows.dim() != 1 or rows.dtype not in WHOLE or rows.numel() == 0
    if wrong or int(rows.min()) < 0 or int(rows.max()) >= held:
        raise ValueError(
            f"choose rows of the batch by numbers from 0 to {held - 1}, of shape [rows], got {checks.shown(rows)}"
        )
    rows = rows.to(keys.k.device)
    memo = {name: fact[rows] for name, fact in keys.memo.items()}
    return Keys(keys.k[rows], keys.v[rows], keys.at.batch_rows(rows), memo)


def joined(old: Positions, new: Positions, batch: int) -> Positions:
    """The positions of both, the new tokens behind the old ones: made once for all layers that hold the same."""
    return once(new, (joined, old, version(old), batch), lambda: join(old, new, batch))


def join(old: Positions, new: Positions, batch: int) -> Positions:
    counted = old.with_next(new) if isinstance(old, Counted) else None
    if counted is not None:
        return counted

    def cat(a: Tensor, b: Tensor) -> Tensor:
        shared = a.shape[0] == b.shape[0]
        return torch.cat((a, b), 1) if shared else torch.cat((expanded(a, batch), expanded(b, batch)), 1)

    one_document = old.document is None and new.document is None
    follows = old.contiguous and new.contiguous and old.unit_step and new.unit_step
    follows = follows and old.extent is not None and new.extent == old.extent + new.tokens
    return Positions(
        coords=cat(old.coords, new.coords),
        order=cat(old.order, new.order),
        document=None if one_document else cat(documents(old), documents(new)),
        horizon=new.horizon,
        contiguous=follows,
        unit_step=old.unit_step and new.unit_step,
        extent=larger(old.extent, new.extent),
    )


def larger(a: int | None, b: int | None) -> int | None:
    """The extent of tokens with these two."""
    return None if a is None or b is None else max(a, b)


def check_rows(held: Keys, new: Keys) -> None:
    """Raises ValueError unless the new keys are of as many rows and heads as those that a cache holds."""
    if held.k.shape[:2] != new.k.shape[:2]:
        raise ValueError(
            f"the cache holds keys of {held.k.shape[0]} rows and {held.k.shape[1]} heads, got new ones of "
            f"{new.k.shape[0]} and {new.k.shape[1]}; start a new cache for another batch"
        )


def check_behind(held: Keys | None, at: Positions, mask: Mask) -> None:
    """Raises ValueError unless all tokens come after what a cache holds, and none is of a prefix that it holds in part.

    Only where that is known, or may be read.
    """
    # A number that is read in a graph, and changes with every token, compiles it anew.
    if held is None or torch.compiler.is_compiling():
        return
    follows = at.start is not None and held.at.unit_step and held.at.extent is not None and at.start >= held.at.extent
    beyond = not mask.prefix or (at.start is not None and at.start >= mask.prefix)
    if (follows and beyond) or not may_be_read(at.order, held.at.order):
        return
    latest = held.at.order.amax(1, keepdim=True)
    wrong = (at.order >= 0) & (at.order <= latest)
    if not follows and bool(wrong.any()):
        row, token = wrong.nonzero()[0].tolist()
        first, last = int(at.order.expand_as(wrong)[row, token]), int(latest.expand(wrong.shape[0], 1)[row, 0])
        raise ValueError(
            f"the cache holds tokens up to order {last}, and a token of order {first} cannot come behind them; number "
            f"the new tokens from {last + 1}, or give ids alone (a tensor, or Positions.of(ids)), which are put there"
        )
    if not beyond and bool((((at.order >= 0) & (at.order < mask.prefix)) & (latest >= 0)).any()):
        raise ValueError(
            f"a prefix of {mask.prefix} tokens came in pieces, and its first tokens could not see the later ones; give "
            f"all of it in the first chunk, or masks.prefix of as many tokens as that holds"
        )


def documents(at: Positions) -> Tensor:
    """The document of each token; 0 where there is only one."""
    return torch.zeros_like(at.order) if at.document is None else at.document


def expanded(x: Tensor, batch: int) -> Tensor:
    return x.expand(batch, *x.shape[1:])


def scattered(into: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """`into` with new[b, ..., t, ...] at slot[b, t] along `axis`, as a new tensor."""
    # What was held may be whole coordinates, and this fractions; or one row, of which several were chosen.
    dtype, rows = torch.promote_types(into.dtype, new.dtype), together(into, slot, new)
    return scatter_in_place(memory(into, (rows, *into.shape[1:]), dtype).copy_(into), slot, new, axis)


def scatter_in_place(into: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """The same, in the memory of `into` where its dtype and its rows can hold the new values."""
    if new.dtype != into.dtype:
        if torch.promote_types(into.dtype, new.dtype) != into.dtype:
            return scattered(into, slot, new, axis)
        new = new.to(into.dtype)
    if into.shape[0] != together(into, slot, new):
        return scattered(into, slot, new, axis)
    new = new.expand(into.shape[0], *new.shape[1:])
    if slot.shape[0] == 1:
        return into.index_copy_(axis, slot[0], new)
    index = slot.view(slot.shape[0], *(1,) * (axis - 1), slot.shape[1], *(1,) * (new.dim() - axis - 1)).expand_as(new)
    return into.scatter_(axis, index, new)


def together(*facts: Tensor) -> int:
    """The rows of a batch that these facts are of; one row may stand for any number of them, or for none."""
    for fact in facts:
        if fact.shape[0] != 1:
            return fact.shape[0]
    return 1


def memory(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory of a shape on the device of `like`, to be written in every mode: inference mode's own is not."""
    with torch.inference_mode(False):
        return like.new_empty(shape, dtype=dtype)
