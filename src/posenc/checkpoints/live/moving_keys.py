"""Tokens that are cut out of the cache of a live transformers model, and the others moved up behind the gaps."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.cache.columns import at_columns, chosen_columns
from posenc.cache.held import joined, last_of
from posenc.cache.layer import Operations, along, elsewhere, standing
from posenc.cache.operations import noticed, row_numbers
from posenc.checkpoints.kinds.calls import Call, parameters
from posenc.checkpoints.live.cached_positions import PASSES, REMEMBERED, follow_passes
from posenc.checkpoints.live.turned_keys import CachedKeys, layers_of
from posenc.encoding.keys import Keys
from posenc.tokens.positions import Positions, PositionsLike, positions_for


def movable(model: nn.Module, cache: Any, positions: PositionsLike = None) -> "MovableCache":
    """Let tokens be cut out of a transformers cache, and the others move up, in the model as it is.

    model      a transformers decoder in evaluation mode, in its own attention
    cache      DynamicCache(), made without a config so that it keeps all tokens; empty, or filled by this model
    positions  where the tokens stand that it holds already: Positions, ids, or nothing for 0, 1, 2, ...

    What it gives has `crop`, `evict`, `drop`, `move`, `rows`, `held` and `bytes`, as posenc's own caches have them; the
    cache itself is changed. Keys that move are turned by the difference from where the model turned them first, which
    are kept beside the cache, so that no number of moves adds up errors. How they turn is read of each layer, and
    compared once with what the model itself caches at other places. What comes into the cache later is noted as it
    comes.

    Where tokens were left apart or padded, the model has to be told where the next ones stand: `inputs` says so. Tokens
    that count up from 0 without padding, as `evict` leaves them, go on by themselves.

    Raises TypeError for what is no transformers model or cache, and ValueError for layers that do not hold all tokens
    (sliding, static or quantised ones, recurrent states), for a model that posenc is attached to, and for positions
    that do not fit. Limits: one axis; tokens that stand apart on several, as those of an image do, are refused.
    """
    return MovableCache(CachedKeys.of(model), cache, positions)


@dataclass(frozen=True)
class Pass:
    """What one forward pass put into a cache: `tokens` behind the first `start` ones.

    coords   [B or 1, T, A], where they stand, all axes alike for text; None in a model that is told no positions
    present  [B, T], where there is no padding; None for everywhere
    """

    start: int
    tokens: int
    coords: Tensor | None
    present: Tensor | None


class Note:
    """The hook of a decoder: what each pass puts into one cache is noted there. A copy of the model follows none."""

    def __init__(self, cache: Any = None) -> None:
        self.cache = (lambda: None) if cache is None else weakref.ref(cache)

    def __call__(self, decoder: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        cache = self.cache()
        if cache is None or torch.compiler.is_compiling():
            return
        call = Call(parameters(type(decoder)), args, kwargs)
        if call["cache"] is not cache:
            return
        ids = call["inputs_embeds"] if call["input_ids"] is None else call["input_ids"]
        tokens, total = ids.shape[1], int(cache.get_seq_length())
        start = total - tokens
        mask, present = call["attention_mask"], None
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= total:
            mine = mask[:, start:total] != 0
            present = None if bool(mine.all()) else mine
        coords = None
        if "position_ids" in call.names:
            coords = coords_of(call["position_ids"], start, tokens, ids.device)
        getattr(cache, PASSES).append(Pass(start, tokens, coords, present))

    def __reduce__(self) -> tuple:
        return Note, ()


@dataclass(frozen=True)
class First:
    """The slots of a layer when tokens were moved last, as they were turned first.

    k       [B, KV, n, D]
    coords  [B or 1, n, 1], where the model turned them
    """

    k: Tensor
    coords: Tensor


class MovableCache(Operations):
    """The tokens in the cache of a live transformers model; `movable` makes it.

    cache  transformers' own, which the model is given

    Slots lie in the order of their tokens, and rows that hold fewer are padded on the left. transformers' windows and
    biases count distances in slots, so that tokens of such layers cannot be left apart.
    """

    def __init__(self, keys: CachedKeys, cache: Any, positions: PositionsLike = None) -> None:
        self.keys, self.cache = keys, cache
        if hasattr(cache, REMEMBERED):
            raise ValueError(
                "this cache was filled by a model that attends through posenc, and holds keys that no position turned; "
                "start with a new cache"
            )
        self.at: Positions | None = None
        self.first: dict[int, First] = {}
        # The shortest and the longest of the passes that turned keys, for encodings that depend on one.
        self.horizons: tuple[int, int] | None = None
        if tokens := self.tokens:
            at = positions_for(tokens, positions, batch=self.batch, device=self.device)
            self.at = noticed(at.changed(coords=on_one_axis(at.coords), loose=False))
            self.saw_horizon(at.coords)
        elif positions is not None:
            raise ValueError("the cache is empty, and has no tokens to stand at positions; give them with the tokens")
        self.noted: list[Pass | Tensor] = follow_passes(self.cache)
        handle = self.keys.decoder.register_forward_hook(Note(self.cache), with_kwargs=True)
        weakref.finalize(self, handle.remove)

    @property
    def layers(self) -> dict[int, Any]:
        """The layers that hold keys, by their number."""
        return {number: layer for number, layer in layers_of(self.cache).items() if layer.get_seq_length()}

    @property
    def tokens(self) -> int:
        """How many tokens the cache holds, padding among them."""
        return max((layer.get_seq_length() for layer in self.layers.values()), default=0)

    @property
    def batch(self) -> int:
        return next((len(layer.keys) for layer in self.layers.values()), 1)

    @property
    def device(self) -> torch.device:
        return next((layer.keys.device for layer in self.layers.values()), torch.device("cpu"))

    @property
    def held(self) -> Positions | None:
        """Where the tokens stand that are held; order -1 for padding.

        Raises ValueError where tokens came or went in a way that could not be seen, or stand apart on several axes.
        """
        if getattr(self.cache, PASSES, None) is not self.noted:
            raise ValueError("the tokens of this cache are followed by another movable(model, cache); go on with it")
        if self.noted:
            for noted in self.noted:
                if isinstance(noted, Pass):
                    self.took(noted)
                else:
                    self.chose(noted)
            self.noted.clear()
            self.at = None if self.at is None else noticed(self.at)
        self.check_followed(self.tokens)
        self.cut(self.tokens)
        return self.at

    def check_followed(self, tokens: int) -> None:
        """Raises ValueError where the cache holds, or held, more tokens than have been seen to come."""
        known = 0 if self.at is None else self.at.tokens
        if tokens > known:
            raise ValueError(
                f"the cache holds {tokens} tokens, of which {tokens - known} came in a pass that could not be followed "
                f"(compiled, or by another model); say where all stand: movable(model, cache, positions)"
            )

    def cut(self, tokens: int) -> None:
        """Forget what transformers has cropped."""
        if self.at is None or tokens >= self.at.tokens:
            return
        self.at = noticed(self.at.rows(slice(0, tokens))) if tokens else None
        self.horizons = self.horizons if tokens else None
        firsts = self.first.items() if tokens else ()
        self.first = {number: First(first.k[:, :, :tokens], first.coords[:, :tokens]) for number, first in firsts}

    def took(self, noted: Pass) -> None:
        """Note where the tokens of a pass stand."""
        self.cut(noted.start)
        self.check_followed(noted.start)
        old, device = self.at, self.device
        last = torch.full((1, 1), -1, device=device) if old is None else old.order.amax(1, keepdim=True)
        if noted.present is None:
            order = last + 1 + torch.arange(noted.tokens, device=device)[None]
        else:
            order = (last + noted.present.long().cumsum(1)).masked_fill(~noted.present, -1)
        if noted.coords is None:
            apart = 0 if old is None else torch.where(last < 0, 0, last_of(old).coords[..., 0] - last_of(old).order)
            coords = (order + apart).clamp(min=0)[..., None]
        else:
            coords = on_one_axis(noted.coords)
        new = Positions(coords, order)
        batch = max(order.shape[0], coords.shape[0], 1 if old is None else old.order.shape[0], self.batch)
        self.at = new if old is None else joined(old, new, batch)
        self.saw_horizon(coords)

    def chose(self, rows: Tensor) -> None:
        """Note that transformers chose rows of the batch, as it does with beams."""
        if self.at is not None:
            self.at = self.at.batch_rows(rows)
        for number, first in self.first.items():
            few = first.coords.shape[0] == 1
            coords = first.coords if few else first.coords[rows.to(first.coords.device)]
            self.first[number] = First(first.k[rows.to(first.k.device)], coords)

    def saw_horizon(self, coords: Tensor) -> None:
        if self.keys.by_horizon:
            seen = int(coords.max()) + 1
            shortest, longest = self.horizons or (seen, seen)
            self.horizons = min(shortest, seen), max(longest, seen)

    @property
    def bytes(self) -> int:
        """The memory that is taken, with the keys as they were turned first (bytes)."""
        _ = self.held
        tensors = [fact for layer in self.layers.values() for fact in (layer.keys, layer.values)]
        tensors += [first.k for first in self.first.values()]
        return sum(fact.untyped_storage().nbytes() for fact in tensors)

    def next_positions(self, tokens: int = 1) -> Tensor:
        """The `position_ids` of the next tokens, [B or 1, T]: each row goes on one place behind its last token."""
        checks.whole("the number of tokens", tokens, 1)
        held, ahead = self.held, torch.arange(tokens, device=self.keys.device)[None]
        if held is None:
            return ahead
        last = last_of(held)
        return torch.where(last.order < 0, 0, last.coords[..., 0] + 1).long() + ahead

    def inputs(self, tokens: int = 1) -> dict[str, Tensor]:
        """What the model has to be given with the next tokens, beside their ids and the cache, by the names it has."""
        given, held = {}, self.held
        if self.keys.takes_positions:
            given["position_ids"] = self.next_positions(tokens).expand(self.batch, tokens)
        if held is not None and bool((held.order < 0).any()):
            present = (held.order >= 0).long().expand(self.batch, -1)
            given["attention_mask"] = torch.cat((present, present.new_ones(self.batch, tokens)), 1)
        return given

    def rows(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, [any number], as transformers chooses them."""
        self.cache.batch_select_indices(row_numbers(rows, self.batch))

    def fork(self, number: int) -> list[Any]:
        raise ValueError("a cache of transformers is not shared; copy it by copy.deepcopy, and give each to movable")

    def stand(self, at: Positions) -> None:
        """Let the held tokens stand there from now on, and forget those of order -1.

        Raises ValueError, before anything is changed, for keys that cannot be moved, and for tokens that are left apart
        where a layer counts slots between them.
        """
        old = self.held
        assert old is not None
        whole = in_order(at)[1]
        self.check_movable(old.coords, at)
        self.check_gaps(torch.zeros(1, 0) if whole is None else whole.order)
        layers = self.layers
        for number, turned in list(self.turned()):
            keys = own_order(standing(turned, at.to(turned.k.device)))
            self.first.pop(number, None)
            k = keys.k
            if keys.turned is not None:
                before = keys.at.with_coords(keys.turned)
                k = self.keys.moved(number, k, before, keys.at, (self.horizons or (1, 1))[1])
                self.first[number] = First(keys.k, keys.turned)
            pair = (k, keys.v) if self.keys.side(number) == "keys" else (keys.v, k)
            layers[number].keys, layers[number].values = pair
        self.at, self.horizons = (None, None) if whole is None else (noticed(whole), self.horizons)

    def turned(self) -> Iterator[tuple[int, Keys]]:
        """The number of each layer, and its Keys as the model turned them: `k` is what turns, `v` what does not."""
        assert self.at is not None
        for number, layer in self.layers.items():
            k, v = layer.keys, layer.values
            if self.keys.side(number) == "values":
                k, v = v, k
            at, turned = self.at.to(k.device), None
            if (first := self.first.get(number)) is not None:
                # What came since stands where the model has turned it.
                since = first.k.shape[2]
                turned = along(first.coords, at.coords[:, since:], len(k))
                k = torch.cat((first.k, k[:, :, since:]), 2)
            yield number, Keys(k, v, at, turned=turned)

    def check_movable(self, coords: Tensor, at: Positions) -> None:
        """Raises ValueError where tokens would stand elsewhere whose keys cannot be moved."""
        if not elsewhere(coords, at):
            return
        if self.keys.fixed:
            raise ValueError(f"tokens would stand elsewhere, and {self.keys.fixed}")
        if self.horizons is not None:
            # The next token has to be turned as those before it are.
            coming = int(at.coords.amax(-1).masked_fill(at.order < 0, 0).max()) + 2
            self.keys.check_horizons(min(self.horizons[0], coming), max(self.horizons[1], coming))

    def check_gaps(self, order: Tensor) -> None:
        """Raises ValueError where tokens of this order [B or 1, T] stand apart, and a layer counts slots between."""
        counts = [number for number in self.layers if self.keys.counts_slots(number)]
        if counts and bool(((order[:, 1:] != order[:, :-1] + 1) & (order[:, :-1] >= 0)).any()):
            raise ValueError(
                f"{type(self.keys.decoder).__name__} counts distances in slots of the cache in layer {counts[0]} (a "
                f"window or a bias), where tokens that stand apart lie side by side; close the gaps (renumber=True)"
            )


def coords_of(ids: Tensor | None, start: int, tokens: int, device: torch.device) -> Tensor:
    """Where the tokens of a pass stand, [B or 1, T, A], by its position_ids; without any they count on from `start`."""
    if ids is None:
        return torch.arange(start, start + tokens, device=device)[None, :, None]
    if ids.dim() == 3:
        # Some models have a row of its own for the mask in front of those of the axes.
        coords = (ids[1:] if len(ids) == 4 else ids).movedim(0, -1)
    else:
        coords = ids[..., None]
    # What all rows share is said once.
    return coords[:1] if bool((coords == coords[:1]).all()) else coords


def on_one_axis(coords: Tensor) -> Tensor:
    """Coordinates [B or 1, T, 1] of tokens [B or 1, T, A] that stand at the same place on each axis.

    Raises ValueError where they do not.
    """
    if coords.shape[-1] > 1 and bool((coords != coords[..., :1]).any()):
        raise ValueError(
            f"tokens stand apart on {coords.shape[-1]} axes, and in a cache of transformers they are moved along one; "
            f"posenc's own caches (posenc.Decoder, model.cache()) move them on several"
        )
    return coords[..., :1]


def in_order(at: Positions) -> tuple[slice | Tensor | None, Positions | None]:
    """Which columns are still held, padding in front, None for all as they are; and what stands there."""
    order = at.order
    most = int((order >= 0).sum(1).max())
    if most == 0:
        return None, None
    index = order.argsort(dim=1, stable=True)[:, at.tokens - most :]
    if bool((index == index[:1]).all()):
        index = index[:1]
    if index.shape[0] == 1 and bool((index[:, 1:] == index[:, :-1] + 1).all()):
        if most == at.tokens:
            return None, at
        begin = int(index[0, 0])
        columns: slice | Tensor = slice(begin, begin + most)
    else:
        columns = index
    return columns, at_columns(at, columns)


def own_order(keys: Keys) -> Keys:
    """The keys of the tokens that are held, in the order of these."""
    columns, at = in_order(keys.at)
    if at is None:
        return replace(chosen_columns(keys, slice(0, 0)), turned=None)
    if columns is not None:
        keys = chosen_columns(keys, columns)
    # Some that were moved may stand again where they were turned.
    turned = keys.turned if keys.turned is not None and elsewhere(keys.turned, at) else None
    return replace(keys, at=at, turned=turned)
