"""What attention needs of a cache, and what can be done to the tokens that one holds."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from posenc import checks
from posenc.cache.held import along, check_rows, joined
from posenc.cache.memory import scatter_in_place, slot_values
from posenc.cache.operations import Tokens, chosen, cropped, forgotten, moved, row_numbers, spliced
from posenc.encoding.base import WHY_FIXED, Encoding
from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.watched import is_watched

Own = TypeVar("Own", bound="Operations")


class Operations(ABC):
    """What can be done to the tokens that are held, in one layer or in all layers of a model.

    Tokens are named by their order: 0 is the first one of a row, wherever it lies, and however much padding there is. A
    call changes all rows, or those of `rows`. What would be wrong is refused before anything is changed.

    Where a token moves, its key is that of its new place at the next call of attention. How, each encoding says
    (`Encoding.moves`): rotated keys are turned by the difference from where they were turned first, so that no number
    of moves adds up errors; keys without a position stay as they are; keys that hold a position which cannot be taken
    out again are refused.
    """

    @property
    @abstractmethod
    def held(self) -> Positions | None:
        """Where the tokens stand that are held; order -1 where there is none."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """How many rows are held."""

    @abstractmethod
    def stand(self, at: Positions) -> None:
        """Let the held tokens stand there from now on, and forget those of order -1.

        `at` is of all tokens that are held, as `held` is. Raises ValueError for keys that cannot be moved.
        """

    @abstractmethod
    def rows(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, [any number], as a search of beams does; a row may come several times.

        Keys are copied once. Raises ValueError for rows that there are not.
        """

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The memory that is taken, with the room for tokens to come (bytes)."""

    def crop(self, tokens: int | Tensor) -> None:
        """Forget the tokens whose order is `tokens` or later (a number, or [B]: one for each row): to go back.

        Rows may then hold different numbers of tokens; each goes on after its own last one. No key is copied.
        Raises ValueError for a negative number, and for a rolling cache that has written over tokens which would be
        seen again.
        """
        if self.held is not None:
            self.stand_if_changed(cropped(self.held, tokens, self.batch))

    def evict(self, keep: Tokens, *, renumber: bool = True, rows: Tokens = None) -> None:
        """Forget all tokens but `keep`: a slice, numbers, or a boolean for each, [tokens] or [B, tokens].

        renumber  whether those that stay close the gaps: they count up from where the first token stood. Without, every
                  token stays where it is, and no encoding refuses that; the next token comes behind the last

        Sinks and a window of the newest:

        >>> from posenc import Decoder
        >>> model = Decoder(vocab=5, dim=8, heads=2, layers=1)
        >>> cache = model.cache()
        >>> _ = model(torch.tensor([[0, 1, 2, 3, 4, 0]]), cache=cache)
        >>> cache.evict([0, 4, 5])
        >>> cache.held.coords[0, :, 0]
        tensor([0, 1, 2])

        Keys that stay are copied once. Raises ValueError for tokens that are not held, and with `renumber` for keys
        that cannot be moved.
        """
        checks.kind("renumber", renumber, bool)
        if self.held is not None:
            gone = ~chosen(self.held, keep, self.batch)
            self.stand_if_changed(forgotten(self.held, gone, self.batch, renumber=renumber, rows=rows))

    def drop(self, tokens: Tokens, *, rows: Tokens = None) -> None:
        """Forget some tokens, and close the gap: as `evict` of all the others."""
        if self.held is not None:
            gone = chosen(self.held, tokens, self.batch)
            self.stand_if_changed(forgotten(self.held, gone, self.batch, renumber=True, rows=rows))

    def move(
        self, tokens: Tokens = None, *, by: int | None = None, to: int | Positions | None = None, rows: Tokens = None
    ) -> None:
        """Let some tokens stand elsewhere: `by` so many places on, or `to` a place, where the first of them then is.

        Order and coordinate move alike. Positions say of each token, in their order, where it is from now on; ids alone
        (Positions.of) leave the order as it is. No key is copied.

        Raises ValueError unless one of `by` and `to` is given, where a token would come before 0 or upon another one,
        and for keys that cannot be moved.
        """
        if self.held is not None:
            self.stand_if_changed(moved(self.held, chosen(self.held, tokens, self.batch, rows), by=by, to=to))

    def stand_if_changed(self, at: Positions) -> None:
        if at is not self.held:
            self.stand(at)

    def fork(self: Own, number: int) -> list[Own]:
        """So many caches that each go their own way from here; what they hold is shared until one of them writes."""
        return [copy(self) for _ in range(checks.whole("the number of caches", number, 1))]


class LayerCache(Operations):
    """The cache of one attention layer: it takes in the keys of new tokens, and gives all keys to attend to."""

    def __init__(self) -> None:
        self.stored: Keys | None = None
        # Keys, and those that were moved turned to where they stand.
        self.settled: tuple[Keys, Tensor] | None = None
        # What `take_in` overwrites, where the call may be refused: memory, slots, the old values or a fill, axis.
        self.undo_log: list[tuple[Tensor, Tensor, Tensor | int, int]] | None = None

    @property
    def keys(self) -> Keys | None:
        """What is remembered. Tokens are taken in, moved and forgotten by methods alone: keys share their memory."""
        return self.stored

    @abstractmethod
    def check(self, at: Positions, mask: Mask) -> None:
        """Raises ValueError unless these tokens come behind what it holds, and it can hold all that they may see."""

    @abstractmethod
    def take_in(self, new: Keys) -> Keys:
        """Remember the keys of new tokens, and give all keys as they are remembered."""

    def extend(self, new: Keys, encoding: Encoding, at: Positions) -> Keys:
        """Take in the keys of new tokens, and give all keys as queries at some positions attend to them: turned."""
        keys = self.take_in(replace(new, query_memo={}) if new.query_memo else new)
        if encoding.turns_when_attending:
            keys = replace(keys, k=encoding.turn(keys.k, keys.at.changed(horizon=at.horizon), "key"))
        else:
            keys = self.placed(keys, encoding)
        return replace(keys, query_memo=new.query_memo) if new.query_memo else keys

    @abstractmethod
    def store(self, keys: Keys) -> None:
        """Hold these keys in place of those before."""

    def hold(self, keys: Keys) -> None:
        """Hold these keys, which are made of those before."""
        self.stored = keys

    def rows(self, rows: Tensor) -> None:
        if self.keys is not None:
            self.hold(rows_of(self.keys, rows))

    @property
    def bytes(self) -> int:
        if self.keys is None:
            return 0
        settled = self.settled_of(self.keys)
        facts = self.keys.facts() | ({} if settled is None else {"settled": settled})
        return sum(self.memory_of(name, fact).nbytes for name, fact in facts.items())

    def memory_of(self, name: str, fact: Tensor) -> Tensor:
        """A fact with the room behind it."""
        return fact

    @property
    def held(self) -> Positions | None:
        return None if self.keys is None else self.keys.at

    @property
    def batch(self) -> int:
        return 1 if self.keys is None else self.keys.k.shape[0]

    def settled_of(self, keys: Keys | None) -> Tensor | None:
        """These keys turned to where they stand; None where that was not kept."""
        return self.settled[1] if self.settled is not None and self.settled[0] is keys else None

    def placed(self, keys: Keys, encoding: Encoding) -> Keys:
        """The keys that `take_in` gave, those that were moved turned to where they stand.

        It is done once behind a move where no gradient is recorded: from then on new tokens come to what was turned.
        """
        if keys.turned is None:
            return keys
        k = self.settled_of(keys)
        if k is None:
            k = encoding.moved(keys.k, keys.at.with_coords(keys.turned), keys.at)
            recording = torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched()
            self.settled = None if recording else (keys, k)
        return replace(keys, k=k, turned=None)

    def stand(self, at: Positions) -> None:
        if self.keys is not None:
            self.store(standing(self.keys, at))

    def splice(self, other: "LayerCache", place: int) -> None:
        """Put the tokens that another cache holds in front of the token of order `place`, as `Cache.splice` does."""
        keys = self.with_spliced(other, place)
        if keys is not None:
            self.store(keys)

    def with_spliced(self, other: "LayerCache", place: int) -> Keys | None:
        """The keys of both, as `splice` has them; None where both are empty."""
        new = other.keys
        if new is None:
            return self.keys
        if self.keys is not None:
            if new.k.shape[0] == 1:
                new = new.each(lambda name, fact: fact.expand(self.batch, *fact.shape[1:]))
            check_rows(self.keys, new)
        at, inserted = spliced(self.held, new.at, place)
        new = standing(new, inserted)
        return new if self.keys is None or at is None else concatenated_keys(standing(self.keys, at), new)


@contextmanager
def unchanged_if_refused(caches: Sequence[LayerCache]) -> Generator[None]:
    """Whatever is raised within leaves these caches as they were: no layer keeps tokens that another one refused."""
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


def elsewhere(coords: Tensor, at: Positions) -> bool:
    """Whether a token stands elsewhere than at these coordinates."""
    return coords is not at.coords and bool(((coords != at.coords).any(-1) & (at.order >= 0)).any())


def standing(keys: Keys, at: Positions) -> Keys:
    """The keys of tokens that stand there from now on, with where they were turned first.

    Raises ValueError where tokens would stand elsewhere whose keys cannot be moved.
    """
    turned = turned_of(keys)
    moves = elsewhere(turned, at)
    if moves and keys.moves in WHY_FIXED:
        raise ValueError(f"tokens would stand elsewhere, and {WHY_FIXED[keys.moves]}")
    return replace(keys, at=at, turned=turned if moves else None)


def turned_of(keys: Keys) -> Tensor:
    """The coordinates where keys were turned, [B or 1, S, A]."""
    return keys.at.coords if keys.turned is None else keys.turned


def concatenated_keys(
    keys: Keys,
    new: Keys,
    join: Callable[[str, Tensor, Tensor], Tensor] = lambda name, held, new: torch.cat((held, new), 2),
) -> Keys:
    """Both keys, the new ones behind the others, each fact of them joined by `join`; by default in new memory."""
    batch, turned = keys.k.shape[0], None
    if keys.turned is not None or new.turned is not None:
        turned = along(turned_of(keys), turned_of(new), batch)
    k, v = join("k", keys.k, new.k), join("v", keys.v, new.v)
    memo = {name: join(f"memo {name}", fact, new.memo[name]) for name, fact in keys.memo.items()}
    return Keys(k, v, joined(keys.at, new.at, batch), memo, turned=turned, moves=new.moves)


def rows_of(keys: Keys, rows: Tensor) -> Keys:
    """Some rows of the batch, [any number]. Raises ValueError for what are no numbers of rows."""
    rows = row_numbers(rows, keys.k.shape[0]).to(keys.k.device)
    turned = keys.turned
    if turned is not None and turned.shape[0] > 1:
        turned = turned[rows]
    return replace(keys.each(lambda name, fact: fact[rows]), at=keys.at.batch_rows(rows), turned=turned)
