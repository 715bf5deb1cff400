"""Where the tokens of a live transformers model stand: those of each forward pass, and those that its caches hold.

Hooks say it to attention before a pass, and note it in the cache behind it.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.cache.layer import along
from posenc.checkpoints.kinds.calls import Call, parameters
from posenc.checkpoints.models.skeleton import with_own_keys
from posenc.encoding.base import Encoding
from posenc.tokens.positions import Positions

KEYWORD = "posenc"
"""The keyword under which a model hands a Step down to its attention."""

REMEMBERED = "posenc_coords"
"""The attribute of a cache that says where its tokens stand, [B or 1, S]."""

PASSES = "posenc_passes"
"""The attribute of a cache that lists what came into it, where its tokens can be moved: passes, and rows chosen."""


@dataclass(frozen=True)
class Step:
    """One forward pass of a decoder: where its new tokens stand, and those that each layer has cached.

    encodings  one for each layer
    tokens     Positions of all tokens so far, the new ones last
    at         Positions of the new tokens
    sizes      layer -> how many keys it attends to, and the index of the first one among all tokens
    sources    layer -> the layer whose keys these are; none where each has its own
    """

    encodings: tuple[Encoding, ...]
    tokens: Positions
    at: Positions
    sizes: Sequence[tuple[int, int]]
    sources: Sequence[int] = ()
    keys: dict[tuple[int, int], Positions] = field(default_factory=dict)
    copies: dict[tuple[int, torch.device], Positions] = field(default_factory=dict)

    def placed(self, at: Positions, device: torch.device) -> Positions:
        """The same Positions on a device, copied once: the layers of a model that is spread attend on several."""
        if (at.device or torch.get_default_device()) == device:
            return at
        if (id(at), device) not in self.copies:
            self.copies[id(at), device] = at.to(device)
        return self.copies[id(at), device]

    def keys_at(self, layer: int, keys: int) -> Positions:
        """The Positions of a layer's keys, of which there are so many; layers of the same tokens share them.

        Raises ValueError when the layer's cache should hold another number of keys.
        """
        size, start = self.sizes[layer]
        if keys != size:
            raise ValueError(
                f"layer {layer} attends to {keys} keys where its cache says {size}: keys of another layer or of before "
                f"the cache cannot be placed"
            )
        if (size, start) not in self.keys:
            self.keys[size, start] = slots_at(self.tokens, self.at, size, start)
        return self.keys[size, start]


def slots_at(tokens: Positions, at: Positions, size: int, start: int) -> Positions:
    """The Positions of so many slots of a cache, the first of which holds the token of index `start`.

    tokens, at  Positions of all tokens so far, and of the new ones, which are the last
    """
    total = tokens.tokens
    if size == at.tokens and start == total - size:
        return at
    if start == 0 and size == total:
        return tokens
    held = tokens.rows(slice(start, min(start + size, total)))
    free = start + size - total
    if free <= 0:
        return held
    # Slots of a static cache that no token is in yet.
    return held.changed(
        coords=F.pad(held.coords, (0, 0, 0, free)), order=F.pad(held.order, (0, free), value=-1), contiguous=False
    )


class Follow:
    """The hooks of a decoder: before a forward pass they say where its tokens stand, behind it the cache remembers."""

    def __init__(self, decoder: nn.Module, encodings: tuple[Encoding, ...], horizon: int | None) -> None:
        self.encodings, self.horizon = encodings, horizon
        self.names = parameters(type(decoder))
        self.by_horizon = any(encoding.turns_when_attending for encoding in encodings)
        self.sources = sources(decoder.config, len(encodings))

    def before(self, decoder: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if torch.compiler.is_compiling():
            raise RuntimeError("attention on unturned keys cannot be compiled; run the attached model as it is")
        call = Call(self.names, args, kwargs)
        cache = call["cache"]
        held = coords_in(cache)
        new = self.coords_of_new(call, held.shape[1])
        coords = along(held.to(new.device), new, max(len(held), len(new)))
        return args, kwargs | {KEYWORD: self.step(coords, new.shape[1], cache)}

    def coords_of_new(self, call: Call, past: int) -> Tensor:
        """Where the new tokens stand, [B or 1, T]: as given, as the padding mask says, or counted."""
        ids = call["inputs_embeds"] if call["input_ids"] is None else call["input_ids"]
        given, mask, tokens = call["position_ids"], call["attention_mask"], ids.shape[1]
        if given is not None and given.dim() != 2:
            raise ValueError(
                f"position_ids have one axis here, shape [batch, tokens]; got {list(given.shape)}: positions on "
                f"several axes are not for attention on unturned keys"
            )
        if given is not None:
            coords = given.to(ids.device)
            if past == 0 and mask is None and call["cache"] is None:
                self.check_packed(coords)
        elif isinstance(mask, Tensor) and mask.dim() == 2:
            coords = counted(present(mask, past, tokens).to(ids.device))[:, past:]
        else:
            coords = torch.arange(past, past + tokens, device=ids.device)[None]
        # What all rows share is said once, so that tables are made once.
        return coords[:1] if bool((coords == coords[:1]).all()) else coords

    def check_packed(self, coords: Tensor) -> None:
        """Raises ValueError for documents in a row, whose lengths differ, where an encoding depends on the horizon."""
        if self.by_horizon and self.horizon is None and bool((coords.diff(dim=1) != 1).any()):
            raise ValueError(
                "several documents in a row have one horizon only when it is declared: attach with horizon=, or give "
                "each document a row of its own"
            )

    def step(self, coords: Tensor, new: int, cache: Any) -> Step:
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
        return Step(self.encodings, tokens, at, sizes, self.sources)

    def after(self, decoder: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        from transformers import Cache

        step: Step = kwargs[KEYWORD]
        # A model that was given no cache makes one itself.
        outputs = output if isinstance(output, tuple) else output.values()
        for cache in (Call(self.names, args, kwargs)["cache"], *outputs):
            if isinstance(cache, Cache):
                remember(cache, step.tokens.coords[..., 0])


def sources(config: Any, layers: int) -> list[int]:
    """For each layer the one whose keys it attends to: its own, or those of the last of its kind that has some."""
    first = with_own_keys(config, layers)
    kinds = getattr(config, "layer_types", None) or [""] * layers
    own = {kinds[layer]: layer for layer in range(first)}
    return [layer if layer < first else own[kinds[layer]] for layer in range(layers)]


def present(mask: Tensor, past: int, tokens: int) -> Tensor:
    """What a padding mask [B, S] says of the tokens in the cache and of the new ones; there may be slots behind them.

    Raises ValueError for a mask of fewer tokens.
    """
    if mask.shape[1] < past + tokens:
        raise ValueError(
            f"attention_mask must cover the {past} tokens in the cache and the {tokens} new ones, got "
            f"{mask.shape[1]} of {past + tokens}"
        )
    return mask[:, : past + tokens]


def counted(present: Tensor) -> Tensor:
    """Where tokens stand by a padding mask [B, S]: the first of each row at 0."""
    return (present.long().cumsum(1) - 1).clamp(min=0)


def coords_in(cache: Any) -> Tensor:
    """Where the tokens stand that a cache holds, [B or 1, S].

    Raises ValueError for a cache that holds tokens which were put in without their positions.
    """
    held = 0 if cache is None else int(cache.get_seq_length())
    coords = getattr(cache, REMEMBERED, None)
    known = 0 if coords is None else coords.shape[1]
    if held > known:
        raise ValueError(
            f"the cache holds {held} tokens, of which {held - known} were put in by a model that was not attached; "
            f"their keys are turned already: start with a new cache"
        )
    if coords is None:
        return torch.zeros(1, 0, dtype=torch.long)
    # A cache that was cropped has lost its last tokens.
    return coords[:, :held]


def remember(cache: Any, coords: Tensor) -> None:
    """Note in a cache where its tokens stand."""
    follow_rows(cache)
    setattr(cache, REMEMBERED, coords)


def follow_rows(cache: Any) -> None:
    """Let what is noted in a cache follow its rows from now on."""
    if not hasattr(cache, REMEMBERED) and not hasattr(cache, PASSES):
        cache.__class__ = remembering(type(cache))


def follow_passes(cache: Any) -> list[Any]:
    """A new list, in which it is noted from now on what comes into a cache."""
    follow_rows(cache)
    passes: list[Any] = []
    setattr(cache, PASSES, passes)
    return passes


@functools.cache
def remembering(kind: type) -> type:
    """A class of caches, whose rows take along where their tokens stand."""

    def of_rows(name: str, chosen: Callable[[int, Any], Any]) -> Callable[[Any, Any], None]:
        def change(self: Any, by: Any) -> None:
            keys = next((layer.keys for layer in self.layers if getattr(layer, "is_initialized", False)), None)
            getattr(kind, name)(self, by)
            coords, passes = getattr(self, REMEMBERED, None), getattr(self, PASSES, None)
            if keys is None:
                return
            rows = chosen(len(keys), by)
            if coords is not None and coords.shape[0] > 1:
                setattr(self, REMEMBERED, coords[rows.to(coords.device)])
            if passes is not None:
                passes.append(rows)

        return change

    changes: dict[str, Callable[[int, Any], Any]] = {
        "reorder_cache": lambda batch, by: by,
        "batch_repeat_interleave": lambda batch, by: torch.arange(batch).repeat_interleave(by),
        "batch_select_indices": lambda batch, by: torch.arange(batch)[by.cpu() if isinstance(by, Tensor) else by],
    }
    facts = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), facts | {name: of_rows(name, chosen) for name, chosen in changes.items()})
