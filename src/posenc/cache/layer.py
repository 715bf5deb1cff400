"""The cache of one attention layer, and the operations on cached tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from posenc import checks
from posenc.cache.cached_positions import check_rows, concatenated_rows, joined_positions
from posenc.cache.memory import scatter_in_place, slot_values
from posenc.cache.operations import (
    TokenSet,
    crop_positions,
    drop_positions,
    move_positions,
    row_numbers,
    splice_at,
    token_mask,
)
from posenc.encoding.base import WHY_FIXED, Encoding
from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import is_watched

CacheType = TypeVar("CacheType", bound="CacheOperations")


class CacheOperations(ABC):
    """Operations on cached tokens, in one layer or in all layers of a model.

    Tokens are named by their order: 0 is the first one of a row, whatever its slot and padding. A call changes all
    rows, or those of `rows`. Wrong arguments are refused before anything changes.

    The next call of attention uses the key of a moved token at its new position. `Encoding.moves` says how: rotated
    keys are rotated by the difference from their first position, so errors do not add up over moves; keys without a
    position stay as they are; keys whose position cannot be taken out again are refused.
    """

    @property
    @abstractmethod
    def held(self) -> Positions | None:
        """Return the positions [B or 1, S] of the cached tokens; None if empty. Order -1 marks an empty slot."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """Return the number of rows of the batch."""

    @abstractmethod
    def set_positions(self, at: Positions) -> None:
        """Move the cached tokens to these positions, one for each column of `held`. Order -1 forgets a token.

        Raises ValueError for keys that cannot be moved.
        """

    @abstractmethod
    def rows(self, rows: Tensor) -> None:
        """Keep these rows of the batch, [n], as a beam search does; a row may occur several times.

        Keys are copied once. Raises ValueError for rows that do not exist.
        """

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Return the memory in use, free slots included (bytes)."""

    def crop(self, tokens: int | Tensor) -> None:
        """Go back: forget the tokens whose order is `tokens` or later. `tokens` is a number, or [B], one for each row.

        Rows may then hold different numbers of tokens; each continues after its own last one. No key is copied.
        Raises ValueError for a negative number, and for a rolling cache that has overwritten tokens which would be
        visible again.
        """
        if self.held is not None:
            self.update_positions(crop_positions(self.held, tokens, self.batch))

    def evict(self, keep: TokenSet, *, renumber: bool = True, rows: TokenSet = None) -> None:
        """Forget all tokens but `keep`: a slice, numbers, or a boolean for each, [tokens] or [B, tokens].

        renumber  whether gaps close: positions count up from the first token. Without, every token keeps its position,
                  which no encoding refuses; the next token comes behind the last

        Keep attention sinks and a window of the newest tokens:

        >>> from posenc import Decoder
        >>> model = Decoder(vocab=5, dim=8, heads=2, layers=1)
        >>> cache = model.cache()
        >>> _ = model(torch.tensor([[0, 1, 2, 3, 4, 0]]), cache=cache)
        >>> cache.evict([0, 4, 5])
        >>> cache.held.coords[0, :, 0]
        tensor([0, 1, 2])

        Keys are copied once. Raises ValueError for tokens that are not cached, and with `renumber` for keys that
        cannot be moved.
        """
        checks.kind("renumber", renumber, bool)
        if self.held is not None:
            drop_mask = ~token_mask(self.held, keep, self.batch)
            self.update_positions(drop_positions(self.held, drop_mask, self.batch, renumber=renumber, rows=rows))

    def drop(self, tokens: TokenSet, *, rows: TokenSet = None) -> None:
        """Forget some tokens and close the gaps, as `evict` with all other tokens."""
        if self.held is not None:
            drop_mask = token_mask(self.held, tokens, self.batch)
            self.update_positions(drop_positions(self.held, drop_mask, self.batch, renumber=True, rows=rows))

    def move(
        self,
        tokens: TokenSet = None,
        *,
        by: int | None = None,
        to: int | Positions | None = None,
        rows: TokenSet = None,
    ) -> None:
        """Move some tokens `by` a number of places, or `to` the place of the first of them.

        Order and coordinate move alike. Positions as `to` name the new place of each token, sorted by order; ids alone
        (Positions.of) leave the order as it is. No key is copied.

        Raises ValueError unless one of `by` and `to` is given, for a token moved before 0 or onto another one, and for
        keys that cannot be moved.
        """
        if self.held is not None:
            mask = token_mask(self.held, tokens, self.batch, rows)
            self.update_positions(move_positions(self.held, mask, steps=by, target=to))

    def update_positions(self, at: Positions) -> None:
        if at is not self.held:
            self.set_positions(at)

    def fork(self: CacheType, number: int) -> list[CacheType]:
        """Return `number` independent copies of this cache, which share memory until one of them writes."""
        return [copy(self) for _ in range(checks.whole("the number of caches", number, 1))]


class LayerCache(CacheOperations):
    """The cache of one attention layer."""

    def __init__(self) -> None:
        self.stored_keys: Keys | None = None
        # The stored keys, and their k rotated to the current positions.
        self.current_k: tuple[Keys, Tensor] | None = None
        # What `take_in` overwrites, to roll back a refused call: memory, slots, the old values or a fill, axis.
        self.undo_log: list[tuple[Tensor, Tensor, Tensor | int, int]] | None = None

    @property
    def keys(self) -> Keys | None:
        """Return the stored keys. Change them by methods alone: keys share memory."""
        return self.stored_keys

    @abstractmethod
    def check(self, at: Positions, mask: Mask) -> None:
        """Raise ValueError unless tokens follow the cached ones and the cache can hold all they see."""

    @abstractmethod
    def take_in(self, new: Keys) -> Keys:
        """Store the keys of new tokens, and return all stored keys."""

    def extend(self, new: Keys, encoding: Encoding, at: Positions) -> Keys:
        """Store the keys of new tokens, and return all keys, rotated, as queries at `at` attend to them."""
        keys = self.take_in(replace(new, query_memo={}) if new.query_memo else new)
        if encoding.turns_when_attending:
            keys = replace(keys, k=encoding.turn(keys.k, keys.at.with_facts(horizon=at.horizon), "key"))
        else:
            keys = self.rotated_keys(keys, encoding)
        return replace(keys, query_memo=new.query_memo) if new.query_memo else keys

    @abstractmethod
    def store(self, keys: Keys) -> None:
        """Replace the stored keys, without their empty columns."""

    def set_keys(self, keys: Keys) -> None:
        """Replace the stored keys by others in the same layout."""
        self.stored_keys = keys

    def rows(self, rows: Tensor) -> None:
        if self.keys is not None:
            self.set_keys(keys_of_rows(self.keys, rows))

    @property
    def bytes(self) -> int:
        if self.keys is None:
            return 0
        rotated_k = self.current_k_of(self.keys)
        facts = self.keys.facts() | ({} if rotated_k is None else {"rotated": rotated_k})
        return sum(self.buffer_of(name, fact).nbytes for name, fact in facts.items())

    def buffer_of(self, name: str, fact: Tensor) -> Tensor:
        """Return the buffer of a fact, free slots included."""
        return fact

    @property
    def held(self) -> Positions | None:
        return None if self.keys is None else self.keys.at

    @property
    def batch(self) -> int:
        return 1 if self.keys is None else self.keys.k.shape[0]

    def current_k_of(self, keys: Keys | None) -> Tensor | None:
        """Return the k of these keys, rotated to the current positions; None if it was not kept."""
        return self.current_k[1] if self.current_k is not None and self.current_k[0] is keys else None

    def rotated_keys(self, keys: Keys, encoding: Encoding) -> Keys:
        """Return the keys of `take_in`, with moved keys rotated to their current positions.

        Without gradients the rotation runs once after a move; new tokens are then appended to the result.
        """
        if keys.turned is None:
            return keys
        k = self.current_k_of(keys)
        if k is None:
            k = encoding.moved(keys.k, keys.at.with_coords(keys.turned), keys.at)
            recording = torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched()
            self.current_k = None if recording else (keys, k)
        return replace(keys, k=k, turned=None)

    def set_positions(self, at: Positions) -> None:
        if self.keys is not None:
            self.store(keys_moved_to(self.keys, at))

    def splice(self, source: "LayerCache", place: int) -> None:
        """Insert the tokens of another cache in front of the token of order `place`, as `Cache.splice` does."""
        keys = self.with_spliced(source, place)
        if keys is not None:
            self.store(keys)

    def with_spliced(self, source: "LayerCache", place: int) -> Keys | None:
        """Return the keys of both caches, as `splice` stores them; None if both are empty."""
        new = source.keys
        if new is None:
            return self.keys
        if self.keys is not None:
            if new.k.shape[0] == 1:
                new = new.each(lambda name, fact: fact.expand(self.batch, *fact.shape[1:]))
            check_rows(self.keys, new)
        at, new_at = splice_at(self.held, new.at, place)
        new = keys_moved_to(new, new_at)
        return new if self.keys is None or at is None else concatenated_keys(keys_moved_to(self.keys, at), new)


@contextmanager
def rollback_on_error(caches: Sequence[LayerCache]) -> Generator[None]:
    """Restore these caches if the block raises: no layer keeps tokens that another one refused."""
    states = [dict(vars(cache)) for cache in caches]
    for cache in caches:
        cache.undo_log = []
    try:
        yield
    except BaseException:
        for cache, state in zip(caches, states, strict=True):
            for memory, slot, old, axis in reversed(cache.undo_log or []):
                scatter_in_place(memory, slot, slot_values(memory, slot, axis).zero_().add_(old), axis)
            vars(cache).update(state)
        raise
    finally:
        for cache in caches:
            cache.undo_log = None


def positions_in_cache(cache: LayerCache | None) -> Positions | None:
    """Return the positions in the cache of a layer; None if empty. Raises ValueError for any other object."""
    if cache is None:
        return None
    if not hasattr(cache, "check"):
        raise ValueError(
            f"attention takes the cache of one layer, got {checks.display(cache)}; "
            f"make one with posenc.cache.GrowingCache(), or take one of a model's cache.layers"
        )
    return None if cache.keys is None else cache.keys.at


def has_moved(coords: Tensor, at: Positions) -> bool:
    """Whether a token has other coordinates than these."""
    return coords is not at.coords and bool(((coords != at.coords).any(-1) & (at.order >= 0)).any())


def keys_moved_to(keys: Keys, at: Positions) -> Keys:
    """Return the keys at new positions, with the coordinates at which they were rotated first.

    Raises ValueError for keys that cannot be moved.
    """
    rotated_at = turned_coords(keys)
    moves = has_moved(rotated_at, at)
    if moves and keys.moves in WHY_FIXED:
        raise ValueError(f"tokens would stand elsewhere, and {WHY_FIXED[keys.moves]}")
    return replace(keys, at=at, turned=rotated_at if moves else None)


def turned_coords(keys: Keys) -> Tensor:
    """Return the coordinates at which keys were rotated, [B or 1, S, A]."""
    return keys.at.coords if keys.turned is None else keys.turned


def concatenated_keys(
    keys: Keys,
    new: Keys,
    join: Callable[[str, Tensor, Tensor], Tensor] = lambda name, old, new: torch.cat((old, new), 2),
) -> Keys:
    """Return old keys followed by new ones, each fact joined by `join`; by default in new memory."""
    batch, rotated_at = keys.k.shape[0], None
    if keys.turned is not None or new.turned is not None:
        rotated_at = concatenated_rows(turned_coords(keys), turned_coords(new), batch)
    k, v = join("k", keys.k, new.k), join("v", keys.v, new.v)
    memo = {name: join(f"memo {name}", fact, new.memo[name]) for name, fact in keys.memo.items()}
    return Keys(k, v, joined_positions(keys.at, new.at, batch), memo, turned=rotated_at, moves=new.moves)


def keys_of_rows(keys: Keys, rows: Tensor) -> Keys:
    """Return the keys of some rows of the batch, [n]. Raises ValueError for rows that do not exist."""
    rows = row_numbers(rows, keys.k.shape[0]).to(keys.k.device)
    rotated_at = keys.turned
    if rotated_at is not None and rotated_at.shape[0] > 1:
        rotated_at = rotated_at[rows]
    return replace(keys.each(lambda name, fact: fact[rows]), at=keys.at.batch_rows(rows), turned=rotated_at)
