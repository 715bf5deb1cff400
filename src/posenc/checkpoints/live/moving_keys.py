"""Remove tokens from a live transformers model's cache, and move the others up to close gaps."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.cache.cached_positions import joined_positions, last_positions
from posenc.cache.columns import keys_of_columns, positions_of_columns
from posenc.cache.layer import CacheOperations, concatenated_rows, has_moved, keys_moved_to
from posenc.cache.operations import row_numbers, with_inferred_fields
from posenc.checkpoints.kinds.calls import HookedCall, parameter_names
from posenc.checkpoints.live.cached_keys import CachedKeys, cache_layers
from posenc.checkpoints.live.cached_positions import COORDS_ATTRIBUTE, PASSES_ATTRIBUTE, track_passes
from posenc.encoding.keys import Keys
from posenc.tokens.positions import Positions, PositionsLike, positions_for

if TYPE_CHECKING:
    from transformers import Cache


def movable(model: nn.Module, cache: "Cache", positions: PositionsLike = None) -> "MovableCache":
    """Return the movable tokens of a transformers cache, without a change of the model.

    model      a transformers decoder in evaluation mode, in its own attention
    cache      DynamicCache(), made without a config so that it keeps all tokens; empty, or filled by this model
    positions  the positions of the tokens in it: Positions, ids, or nothing for 0, 1, 2, ...

    The result has `crop`, `evict`, `drop`, `move`, `rows`, `held` and `bytes`, as posenc's own caches have; they change
    the cache in place. A key that moves is rotated from its original, which is kept beside the cache, so errors of
    several moves do not add up. The rotation is read from each layer, and compared once with the keys that the model
    caches at other positions. Later passes into the cache are recorded.

    After gaps or padding the model needs the positions of the next tokens, from `inputs`. Tokens that count up from 0
    without padding, as `evict` leaves them, need none.

    Raises TypeError for another object than a transformers model or cache, and ValueError for layers that do not keep
    all tokens (sliding, static or quantised ones, recurrent states), for a model that posenc is attached to, and for
    positions that do not fit. Limit: one axis; tokens with different positions on several, as of an image, are refused.
    """
    return MovableCache(CachedKeys.from_model(model), cache, positions)


@dataclass(frozen=True)
class Pass:
    """The new tokens of one forward pass in a cache: `tokens` after the first `start` ones.

    coords   their positions, [B or 1, T, A], all axes alike for text; None in a model without position_ids
    present  mask of tokens that are no padding, [B, T]; None without padding
    """

    start: int
    tokens: int
    coords: Tensor | None
    present: Tensor | None


class PassRecorder:
    """The hook of a decoder that records each pass into one cache. In a copy of the model it records none."""

    def __init__(self, cache: "Cache | None" = None) -> None:
        self.cache = (lambda: None) if cache is None else weakref.ref(cache)

    def __call__(self, decoder: nn.Module, args: tuple, kwargs: dict[str, Any], output: object) -> None:
        cache = self.cache()
        if cache is None or torch.compiler.is_compiling():
            return
        call = HookedCall(parameter_names(type(decoder)), args, kwargs)
        if call["cache"] is not cache:
            return
        ids = call["inputs_embeds"] if call["input_ids"] is None else call["input_ids"]
        tokens, total = ids.shape[1], int(cache.get_seq_length())
        start = total - tokens
        mask, present = call["attention_mask"], None
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= total:
            new_tokens = mask[:, start:total] != 0
            present = None if bool(new_tokens.all()) else new_tokens
        takes_ids = "position_ids" in call.names
        coords = coords_of(call["position_ids"], start, tokens, ids.device) if takes_ids else None
        getattr(cache, PASSES_ATTRIBUTE).append(Pass(start, tokens, coords, present))

    def __reduce__(self) -> tuple:
        return PassRecorder, ()


@dataclass(frozen=True)
class OriginalKeys:
    """The keys of a layer at the last move, as the model rotated them originally.

    k       [B, KV, n, D]
    coords  [B or 1, n, 1], the positions of that rotation
    """

    k: Tensor
    coords: Tensor


class MovableCache(CacheOperations):
    """The tokens in the cache of a live transformers model; `movable` makes it.

    cache  transformers' own cache, an argument of the model

    Slots have the order of their tokens, and shorter rows are padded on the left. transformers' windows and biases
    count distances in slots, so tokens of such layers cannot have gaps.
    """

    def __init__(self, keys: CachedKeys, cache: "Cache", positions: PositionsLike = None) -> None:
        self.keys, self.cache = keys, cache
        if hasattr(cache, COORDS_ATTRIBUTE):
            raise ValueError(
                "this cache was filled by a model that attends through posenc, and holds keys that no position turned; "
                "start with a new cache"
            )
        self.at: Positions | None = None
        self.originals: dict[int, OriginalKeys] = {}
        # The shortest and the longest horizon of the passes so far, for encodings that depend on one.
        self.horizons: tuple[int, int] | None = None
        if tokens := self.tokens:
            at = positions_for(tokens, positions, batch=self.batch, device=self.device)
            self.at = with_inferred_fields(at.with_facts(coords=single_axis(at.coords), loose=False))
            self.widen_horizons(at.coords)
        elif positions is not None:
            raise ValueError("the cache is empty, and has no tokens to stand at positions; give them with the tokens")
        self.passes: list[Pass | Tensor] = track_passes(self.cache)
        handle = self.keys.decoder.register_forward_hook(PassRecorder(self.cache), with_kwargs=True)
        weakref.finalize(self, handle.remove)

    @property
    def layers(self) -> dict[int, Any]:
        """The layers with keys, by number."""
        return {number: layer for number, layer in cache_layers(self.cache).items() if layer.get_seq_length()}

    @property
    def tokens(self) -> int:
        """The number of tokens in the cache, with padding."""
        return max((layer.get_seq_length() for layer in self.layers.values()), default=0)

    @property
    def batch(self) -> int:
        return next((len(layer.keys) for layer in self.layers.values()), 1)

    @property
    def device(self) -> torch.device:
        return next((layer.keys.device for layer in self.layers.values()), torch.device("cpu"))

    @property
    def held(self) -> Positions | None:
        """The positions of the cached tokens; order -1 for padding.

        Raises ValueError if tokens came or went unrecorded, or differ in position between axes.
        """
        if getattr(self.cache, PASSES_ATTRIBUTE, None) is not self.passes:
            raise ValueError("the tokens of this cache are followed by another movable(model, cache); go on with it")
        if self.passes:
            for event in self.passes:
                if isinstance(event, Pass):
                    self.add_pass(event)
                else:
                    self.select_rows(event)
            self.passes.clear()
            self.at = None if self.at is None else with_inferred_fields(self.at)
        self.check_followed(self.tokens)
        self.crop_to(self.tokens)
        return self.at

    def check_followed(self, tokens: int) -> None:
        """Raise ValueError if the cache has, or had, more tokens than were recorded."""
        count = 0 if self.at is None else self.at.tokens
        if tokens > count:
            raise ValueError(
                f"the cache holds {tokens} tokens, of which {tokens - count} came in a pass that could not be followed "
                f"(compiled, or by another model); say where all stand: movable(model, cache, positions)"
            )

    def crop_to(self, tokens: int) -> None:
        """Forget tokens that transformers has cropped."""
        if self.at is None or tokens >= self.at.tokens:
            return
        self.at = with_inferred_fields(self.at.rows(slice(0, tokens))) if tokens else None
        self.horizons = self.horizons if tokens else None
        firsts = self.originals.items() if tokens else ()
        self.originals = {n: OriginalKeys(keys.k[:, :, :tokens], keys.coords[:, :tokens]) for n, keys in firsts}

    def add_pass(self, new_pass: Pass) -> None:
        """Add the positions of the tokens of a pass."""
        self.crop_to(new_pass.start)
        self.check_followed(new_pass.start)
        old, device = self.at, self.device
        last = torch.full((1, 1), -1, device=device) if old is None else old.order.amax(1, keepdim=True)
        if new_pass.present is None:
            order = last + 1 + torch.arange(new_pass.tokens, device=device)[None]
        else:
            order = (last + new_pass.present.long().cumsum(1)).masked_fill(~new_pass.present, -1)
        if new_pass.coords is None:
            end = None if old is None else last_positions(old)
            shift = 0 if end is None else torch.where(last < 0, 0, end.coords[..., 0] - end.order)
            coords = (order + shift).clamp(min=0)[..., None]
        else:
            coords = single_axis(new_pass.coords)
        new = Positions(coords, order)
        batch = max(order.shape[0], coords.shape[0], 1 if old is None else old.order.shape[0], self.batch)
        self.at = new if old is None else joined_positions(old, new, batch)
        self.widen_horizons(coords)

    def select_rows(self, rows: Tensor) -> None:
        """Follow a selection of rows by transformers, as in beam search."""
        if self.at is not None:
            self.at = self.at.batch_rows(rows)
        for number, first in self.originals.items():
            is_shared = first.coords.shape[0] == 1
            coords = first.coords if is_shared else first.coords[rows.to(first.coords.device)]
            self.originals[number] = OriginalKeys(first.k[rows.to(first.k.device)], coords)

    def widen_horizons(self, coords: Tensor) -> None:
        if self.keys.by_horizon:
            horizon = int(coords.max()) + 1
            shortest, longest = self.horizons or (horizon, horizon)
            self.horizons = min(shortest, horizon), max(longest, horizon)

    @property
    def bytes(self) -> int:
        """The memory of the cache and of the original keys (bytes)."""
        _ = self.held
        tensors = [fact for layer in self.layers.values() for fact in (layer.keys, layer.values)]
        tensors += [first.k for first in self.originals.values()]
        return sum(fact.untyped_storage().nbytes() for fact in tensors)

    def next_positions(self, tokens: int = 1) -> Tensor:
        """Return `position_ids` of the next tokens, [B or 1, T]: each row continues after its last token."""
        checks.whole("the number of tokens", tokens, 1)
        positions, ahead = self.held, torch.arange(tokens, device=self.keys.device)[None]
        if positions is None:
            return ahead
        last = last_positions(positions)
        return torch.where(last.order < 0, 0, last.coords[..., 0] + 1).long() + ahead

    def inputs(self, tokens: int = 1) -> dict[str, Tensor]:
        """Return the arguments that the model needs for the next tokens, beside their ids and the cache."""
        arguments, positions = {}, self.held
        if self.keys.takes_positions:
            arguments["position_ids"] = self.next_positions(tokens).expand(self.batch, tokens)
        if positions is not None and bool((positions.order < 0).any()):
            present = (positions.order >= 0).long().expand(self.batch, -1)
            arguments["attention_mask"] = torch.cat((present, present.new_ones(self.batch, tokens)), 1)
        return arguments

    def rows(self, rows: Tensor) -> None:
        """Select rows of the batch, [any number], as transformers does."""
        self.cache.batch_select_indices(row_numbers(rows, self.batch))

    def fork(self, number: int) -> list[Any]:
        raise ValueError("a cache of transformers is not shared; copy it by copy.deepcopy, and give each to movable")

    def set_positions(self, at: Positions) -> None:
        """Move the cached tokens to these positions, and forget those of order -1.

        Raises ValueError, before any change, for keys that cannot move, and for gaps between tokens if a layer counts
        distances in slots.
        """
        old = self.held
        assert old is not None
        whole = kept_columns(at)[1]
        self.check_movable(old.coords, at)
        self.check_gaps(torch.zeros(1, 0) if whole is None else whole.order)
        layers = self.layers
        for number, layer_keys in list(self.layer_keys()):
            keys = ordered_keys(keys_moved_to(layer_keys, at.to(layer_keys.k.device)))
            self.originals.pop(number, None)
            k = keys.k
            if keys.turned is not None:
                old_positions = keys.at.with_coords(keys.turned)
                k = self.keys.moved_keys(number, k, old_positions, keys.at, (self.horizons or (1, 1))[1])
                self.originals[number] = OriginalKeys(keys.k, keys.turned)
            pair = (k, keys.v) if self.keys.side(number) == "keys" else (keys.v, k)
            layers[number].keys, layers[number].values = pair
        self.at, self.horizons = (None, None) if whole is None else (with_inferred_fields(whole), self.horizons)

    def layer_keys(self) -> Iterator[tuple[int, Keys]]:
        """Yield the number of each layer, and its original Keys: `k` is the rotated tensor, `v` the other."""
        assert self.at is not None
        for number, layer in self.layers.items():
            k, v = layer.keys, layer.values
            if self.keys.side(number) == "values":
                k, v = v, k
            at, rotated_at = self.at.to(k.device), None
            if (first := self.originals.get(number)) is not None:
                # The model rotated later tokens at their present positions.
                count = first.k.shape[2]
                rotated_at = concatenated_rows(first.coords, at.coords[:, count:], len(k))
                k = torch.cat((first.k, k[:, :, count:]), 2)
            yield number, Keys(k, v, at, turned=rotated_at)

    def check_movable(self, coords: Tensor, at: Positions) -> None:
        """Raise ValueError if tokens would move whose keys cannot."""
        if not has_moved(coords, at):
            return
        if self.keys.why_fixed:
            raise ValueError(f"tokens would stand elsewhere, and {self.keys.why_fixed}")
        if self.horizons is not None:
            # The next token must be rotated by the same frequencies.
            coming = int(at.coords.amax(-1).masked_fill(at.order < 0, 0).max()) + 2
            self.keys.check_horizons(min(self.horizons[0], coming), max(self.horizons[1], coming))

    def check_gaps(self, order: Tensor) -> None:
        """Raise ValueError if `order` [B or 1, T] has gaps and a layer counts distances in slots."""
        counts = [number for number in self.layers if self.keys.counts_slots(number)]
        if counts and bool(((order[:, 1:] != order[:, :-1] + 1) & (order[:, :-1] >= 0)).any()):
            raise ValueError(
                f"{type(self.keys.decoder).__name__} counts distances in slots of the cache in layer {counts[0]} (a "
                f"window or a bias), where tokens that stand apart lie side by side; close the gaps (renumber=True)"
            )


def coords_of(ids: Tensor | None, start: int, tokens: int, device: torch.device) -> Tensor:
    """Return a pass's positions [B or 1, T, A] from its position_ids. Without any, they count from `start`."""
    if ids is None:
        return torch.arange(start, start + tokens, device=device)[None, :, None]
    if ids.dim() == 3:
        # Some models have a first row for the mask before those of the axes.
        coords = (ids[1:] if len(ids) == 4 else ids).movedim(0, -1)
    else:
        coords = ids[..., None]
    # Equal rows become one.
    return coords[:1] if bool((coords == coords[:1]).all()) else coords


def single_axis(coords: Tensor) -> Tensor:
    """Return one axis [B or 1, T, 1] of coordinates [B or 1, T, A] that agree on all.

    Raises ValueError if the axes differ.
    """
    if coords.shape[-1] > 1 and bool((coords != coords[..., :1]).any()):
        raise ValueError(
            f"tokens stand apart on {coords.shape[-1]} axes, and in a cache of transformers they are moved along one; "
            f"posenc's own caches (posenc.Decoder, model.cache()) move them on several"
        )
    return coords[..., :1]


def kept_columns(at: Positions) -> tuple[slice | Tensor | None, Positions | None]:
    """Return the columns that are kept, padding first, or None for all in place; and their Positions."""
    order = at.order
    longest = int((order >= 0).sum(1).max())
    if longest == 0:
        return None, None
    index = order.argsort(dim=1, stable=True)[:, at.tokens - longest :]
    if bool((index == index[:1]).all()):
        index = index[:1]
    if index.shape[0] == 1 and bool((index[:, 1:] == index[:, :-1] + 1).all()):
        if longest == at.tokens:
            return None, at
        begin = int(index[0, 0])
        columns: slice | Tensor = slice(begin, begin + longest)
    else:
        columns = index
    return columns, positions_of_columns(at, columns)


def ordered_keys(keys: Keys) -> Keys:
    """Return the keys of the kept tokens, in the order of the tokens."""
    columns, at = kept_columns(keys.at)
    if at is None:
        return replace(keys_of_columns(keys, slice(0, 0)), turned=None)
    if columns is not None:
        keys = keys_of_columns(keys, columns)
    # Tokens may be back at the positions of their original rotation.
    rotated_at = keys.turned if keys.turned is not None and has_moved(keys.turned, at) else None
    return replace(keys, at=at, turned=rotated_at)
