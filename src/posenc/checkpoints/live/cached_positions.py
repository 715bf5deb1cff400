"""The positions of tokens in a live transformers model: of each forward pass, and of its caches.

A hook before each pass hands them to attention, and a hook after it stores them in the cache.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.cache.layer import concatenated_rows
from posenc.checkpoints.kinds.calls import HookedCall, parameter_names
from posenc.checkpoints.models.skeleton import layers_with_own_keys
from posenc.encoding.base import Encoding
from posenc.tokens.positions import Positions

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedConfig, PreTrainedModel

KEYWORD = "posenc"
"""The keyword argument by which a model passes PassPositions to its attention."""

COORDS_ATTRIBUTE = "posenc_coords"
"""The attribute of a cache with the coordinates of its tokens, [B or 1, S]."""

PASSES_ATTRIBUTE = "posenc_passes"
"""The attribute of a movable cache that lists its new passes, and selections of rows."""


@dataclass(frozen=True)
class PassPositions:
    """The positions of one forward pass of a decoder, and of the keys that each layer has cached.

    encodings  one for each layer
    tokens     Positions of all tokens so far, the new ones last
    at         Positions of the new tokens
    sizes      layer -> number of keys that it attends to, and the index of the first one among all tokens
    key_sources  layer -> the layer whose keys it uses; empty if each has its own
    """

    encodings: tuple[Encoding, ...]
    tokens: Positions
    at: Positions
    sizes: Sequence[tuple[int, int]]
    key_sources: Sequence[int] = ()
    keys: dict[tuple[int, int], Positions] = field(default_factory=dict)
    copies: dict[tuple[int, torch.device], Positions] = field(default_factory=dict)

    def on_device(self, at: Positions, device: torch.device) -> Positions:
        """Return the Positions on a device, copied once: the layers of a model may be on several devices."""
        if (at.device or torch.get_default_device()) == device:
            return at
        if (id(at), device) not in self.copies:
            self.copies[id(at), device] = at.to(device)
        return self.copies[id(at), device]

    def key_positions(self, layer: int, keys: int) -> Positions:
        """Return the Positions of a layer's keys, of a given number; layers with the same tokens share them.

        Raises ValueError if the layer's cache has another number of keys.
        """
        size, start = self.sizes[layer]
        if keys != size:
            raise ValueError(
                f"layer {layer} attends to {keys} keys where its cache says {size}: keys of another layer or of before "
                f"the cache cannot be placed"
            )
        if (size, start) not in self.keys:
            self.keys[size, start] = slot_positions(self.tokens, self.at, size, start)
        return self.keys[size, start]


def slot_positions(tokens: Positions, at: Positions, size: int, start: int) -> Positions:
    """Return the Positions of `size` slots of a cache, from the token of index `start` on.

    tokens, at  Positions of all tokens so far, and of the new ones, which are the last
    """
    total = tokens.tokens
    if size == at.tokens and start == total - size:
        return at
    if start == 0 and size == total:
        return tokens
    slots = tokens.rows(slice(start, min(start + size, total)))
    free = start + size - total
    if free <= 0:
        return slots
    # A static cache has empty slots.
    coords, order = F.pad(slots.coords, (0, 0, 0, free)), F.pad(slots.order, (0, free), value=-1)
    return slots.with_facts(coords=coords, order=order, contiguous=False)


class PositionHooks:
    """Hooks of a decoder that pass positions to its attention, and store them in its cache."""

    def __init__(self, decoder: "PreTrainedModel", encodings: tuple[Encoding, ...], horizon: int | None) -> None:
        self.encodings, self.horizon = encodings, horizon
        self.names = parameter_names(type(decoder))
        self.by_horizon = any(encoding.turns_when_attending for encoding in encodings)
        self.sources = key_sources(decoder.config, len(encodings))

    def before_pass(self, decoder: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if torch.compiler.is_compiling():
            raise RuntimeError("attention on unturned keys cannot be compiled; run the attached model as it is")
        call = HookedCall(self.names, args, kwargs)
        cache = call["cache"]
        old_coords = cached_coords(cache)
        new = self.coords_of_new(call, old_coords.shape[1])
        coords = concatenated_rows(old_coords.to(new.device), new, max(len(old_coords), len(new)))
        return args, kwargs | {KEYWORD: self.step(coords, new.shape[1], cache)}

    def coords_of_new(self, call: HookedCall, past: int) -> Tensor:
        """Return the positions of the new tokens, [B or 1, T]: given, from the padding mask, or counted."""
        ids = call["inputs_embeds"] if call["input_ids"] is None else call["input_ids"]
        position_ids, mask, tokens = call["position_ids"], call["attention_mask"], ids.shape[1]
        if position_ids is not None and position_ids.dim() != 2:
            raise ValueError(
                f"position_ids have one axis here, shape [batch, tokens]; got {list(position_ids.shape)}: positions on "
                f"several axes are not for attention on unturned keys"
            )
        if position_ids is not None:
            coords = position_ids.to(ids.device)
            if past == 0 and mask is None and call["cache"] is None:
                self.check_packed(coords)
        elif isinstance(mask, Tensor) and mask.dim() == 2:
            coords = coords_from_mask(present(mask, past, tokens).to(ids.device))[:, past:]
        else:
            coords = torch.arange(past, past + tokens, device=ids.device)[None]
        # Equal rows become one, so that tables are computed once.
        return coords[:1] if bool((coords == coords[:1]).all()) else coords

    def check_packed(self, coords: Tensor) -> None:
        """Raise ValueError for packed documents, if an encoding depends on the horizon of each."""
        if self.by_horizon and self.horizon is None and bool((coords.diff(dim=1) != 1).any()):
            raise ValueError(
                "several documents in a row have one horizon only when it is declared: attach with horizon=, or give "
                "each document a row of its own"
            )

    def step(self, coords: Tensor, new: int, cache: "Cache | None") -> PassPositions:
        total = coords.shape[1]
        counting = torch.arange(total, device=coords.device)
        horizon = None
        extent = int(coords.amax()) + 1
        if self.horizon is not None and extent > self.horizon:
            raise ValueError(
                f"a token stands at position {extent - 1}, beyond the declared horizon of {self.horizon} tokens; "
                f"attach with a longer one"
            )
        if self.by_horizon:
            horizon = coords.amax(1) + 1 if self.horizon is None else torch.tensor([self.horizon], device=coords.device)
        if coords.shape[0] == 1 and torch.equal(coords[0], counting):
            tokens = Positions.count(total, device=coords.device)
        else:
            tokens = Positions(coords[..., None], counting[None], contiguous=True, extent=extent)
        tokens = tokens.with_horizon(horizon)
        at = tokens if new == total else tokens.rows(slice(total - new, total))
        sizes = [(new, 0) if cache is None else cache.get_mask_sizes(new, layer) for layer in self.sources]
        return PassPositions(self.encodings, tokens, at, sizes, self.sources)

    def after_pass(self, decoder: nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple | dict) -> None:
        from transformers import Cache

        step: PassPositions = kwargs[KEYWORD]
        # A model without a cache in its arguments makes one itself.
        outputs = output if isinstance(output, tuple) else output.values()
        for cache in (HookedCall(self.names, args, kwargs)["cache"], *outputs):
            if isinstance(cache, Cache):
                store_coords(cache, step.tokens.coords[..., 0])


def key_sources(config: "PreTrainedConfig", layers: int) -> list[int]:
    """Return for each layer the layer whose keys it uses. That is itself, or the last of its type with own keys."""
    first = layers_with_own_keys(config, layers)
    kinds = getattr(config, "layer_types", None) or [""] * layers
    last_of_kind = {kinds[layer]: layer for layer in range(first)}
    return [layer if layer < first else last_of_kind[kinds[layer]] for layer in range(layers)]


def present(mask: Tensor, past: int, tokens: int) -> Tensor:
    """Return the part of a padding mask [B, S] for cached and new tokens; empty slots may follow.

    Raises ValueError for a mask with fewer tokens.
    """
    if mask.shape[1] < past + tokens:
        raise ValueError(
            f"attention_mask must cover the {past} tokens in the cache and the {tokens} new ones, got "
            f"{mask.shape[1]} of {past + tokens}"
        )
    return mask[:, : past + tokens]


def coords_from_mask(present: Tensor) -> Tensor:
    """Return positions from a padding mask [B, S]: the first token of each row is at 0."""
    return (present.long().cumsum(1) - 1).clamp(min=0)


def cached_coords(cache: "Cache | None") -> Tensor:
    """Return the positions of the tokens in a cache, [B or 1, S].

    Raises ValueError for a cache with tokens of unknown positions.
    """
    tokens = 0 if cache is None else int(cache.get_seq_length())
    coords = getattr(cache, COORDS_ATTRIBUTE, None)
    count = 0 if coords is None else coords.shape[1]
    if tokens > count:
        raise ValueError(
            f"the cache holds {tokens} tokens, of which {tokens - count} were put in by a model that was not attached; "
            f"their keys are turned already: start with a new cache"
        )
    if coords is None:
        return torch.zeros(1, 0, dtype=torch.long)
    # A cropped cache has lost its last tokens.
    return coords[:, :tokens]


def store_coords(cache: "Cache", coords: Tensor) -> None:
    """Store the positions of its tokens in a cache."""
    track_rows(cache)
    setattr(cache, COORDS_ATTRIBUTE, coords)


def track_rows(cache: "Cache") -> None:
    """Let the stored positions of a cache follow its rows from now on."""
    if not hasattr(cache, COORDS_ATTRIBUTE) and not hasattr(cache, PASSES_ATTRIBUTE):
        cache.__class__ = tracking_class(type(cache))


def track_passes(cache: "Cache") -> list[Any]:
    """Return a new list that collects the passes into a cache, and selections of rows, from now on."""
    track_rows(cache)
    passes: list[Any] = []
    setattr(cache, PASSES_ATTRIBUTE, passes)
    return passes


@functools.cache
def tracking_class(kind: type) -> type:
    """Return a class of caches whose stored positions follow their rows."""

    def of_rows(name: str, selection: Callable[[int, Any], Any]) -> Callable[[Any, Any], None]:
        def change(self: "Cache", argument: Tensor | int) -> None:
            keys = next((getattr(x, "keys", None) for x in self.layers if getattr(x, "is_initialized", False)), None)
            getattr(kind, name)(self, argument)
            coords, passes = getattr(self, COORDS_ATTRIBUTE, None), getattr(self, PASSES_ATTRIBUTE, None)
            if keys is None:
                return
            rows = selection(len(keys), argument)
            if coords is not None and coords.shape[0] > 1:
                setattr(self, COORDS_ATTRIBUTE, coords[rows.to(coords.device)])
            if passes is not None:
                passes.append(rows)

        return change

    changes: dict[str, Callable[[int, Any], Any]] = {
        "reorder_cache": lambda batch, rows: rows,
        "batch_repeat_interleave": lambda batch, times: torch.arange(batch).repeat_interleave(times),
        "batch_select_indices": lambda batch, i: torch.arange(batch)[i.cpu() if isinstance(i, Tensor) else i],
    }
    facts = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), facts | {name: of_rows(name, select) for name, select in changes.items()})
