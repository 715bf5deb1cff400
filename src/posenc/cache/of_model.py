"""The KV cache of a model."""

from copy import copy
from pathlib import Path

import torch
from torch import Tensor

from posenc import checks
from posenc.cache import files
from posenc.cache.columns import compact
from posenc.cache.growing import GrowingCache
from posenc.cache.layer import Operations, standing
from posenc.cache.operations import row_numbers
from posenc.cache.slots import SlotCache
from posenc.foreign import CannotRead
from posenc.tokens.positions import Positions, positions_for


class Cache(checks.ChecksArguments, Operations):
    """The KV cache of a model: one layer cache for each attention layer.

    Without `slots` it grows; with `slots` it is static, and with `rolling` it keeps the newest only.
    """

    def __init__(self, layers: int, *, slots: int | None = None, rolling: bool = False) -> None:
        if rolling and slots is None:
            raise ValueError("a rolling cache needs a number of slots; give slots=window + chunk - 1")
        checks.whole("layers", layers, 1)
        self.layers: list[GrowingCache | SlotCache] = [
            GrowingCache() if slots is None else SlotCache(slots, rolling=rolling) for _ in range(layers)
        ]

    def __copy__(self) -> "Cache":
        """A cache that goes its own way from here; what both hold is shared until one of them writes."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), layers=[copy(layer) for layer in self.layers])
        return twin

    @property
    def held(self) -> Positions | None:
        return self.layers[0].held

    @property
    def batch(self) -> int:
        return self.layers[0].batch

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    def stand(self, at: Positions) -> None:
        held = [(layer, standing(layer.keys, at)) for layer in self.layers if layer.keys is not None]
        for layer, keys in held:
            layer.store(keys)

    def crop(self, tokens: int | Tensor) -> None:
        # A layer whose slots were written over refuses.
        for layer in self.layers:
            layer.crop(tokens)

    def rows(self, rows: Tensor) -> None:
        rows = row_numbers(rows, self.batch)
        for layer in self.layers:
            layer.rows(rows)

    def splice(self, other: "Cache", place: int) -> None:
        """Put the tokens that another cache holds in front of the token of order `place`, and make room for them.

        `other` is of the same model, holds as many rows, or one for all of them, and is left as it is: a document that
        was computed once comes behind any prompt. All keys are copied once.
        Raises ValueError for a cache of another number of layers, for a place behind the last token, for tokens that do
        not count up by one, and for keys that cannot be moved.
        """
        if not isinstance(other, Cache) or len(other.layers) != len(self.layers):
            raise ValueError(f"splice takes the cache of the same model, got {checks.shown(other)}")
        pairs = zip(self.layers, other.layers, strict=True)
        together = [layer.with_spliced(more, place) for layer, more in pairs]
        for layer, keys in zip(self.layers, together, strict=True):
            if keys is not None:
                layer.store(keys)

    def save(self, file: str | Path) -> None:
        """Write what is held to a safetensors file, without the room for tokens to come.

        Raises ValueError for an empty cache, CannotWrite, and ImportError where safetensors is not installed.
        """
        held = [keys for layer in self.layers if layer.keys is not None and (keys := compact(layer.keys)) is not None]
        if len(held) < len(self.layers):
            raise ValueError("an empty cache has nothing to save; give it tokens first")
        first = self.layers[0]
        slots, rolling = (first.slots, first.rolling) if isinstance(first, SlotCache) else (None, False)
        files.write(file, held, slots=slots, rolling=rolling)

    @classmethod
    def load(cls, file: str | Path, device: torch.device | str | None = None, *, slots: int | None = None) -> "Cache":
        """The cache that `save` wrote: the same kind, which goes on behind the same tokens.

        slots  how many a static cache may have; None: as many as take 256 MiB, or sixteen times what the file holds

        Nothing in a file names code. Raises CannotRead for what is no such file, was damaged, or asks for more slots.
        """
        layers, told = files.read(file, slots)
        cache = cls(len(layers), slots=told["slots"], rolling=told["rolling"])
        try:
            for layer, keys in zip(cache.layers, layers, strict=True):
                layer.store(keys if device is None else keys.to(device))
        except ValueError as error:
            raise CannotRead(f"its tokens do not fit its slots: {error}", file=Path(file)) from None
        return cache

    def next(self, tokens: int, device: torch.device | None = None) -> Positions:
        """The positions of the next `tokens` tokens: each row goes on after its own last one."""
        return positions_for(tokens, None, device=device, held=self.held)
