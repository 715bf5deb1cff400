"""The KV cache of a model."""

from copy import copy
from pathlib import Path

import torch
from torch import Tensor

from posenc import checks
from posenc.cache import files
from posenc.cache.columns import compact
from posenc.cache.growing_cache import GrowingCache
from posenc.cache.layer import CacheOperations, keys_moved_to
from posenc.cache.operations import row_numbers
from posenc.cache.slots import SlotCache
from posenc.foreign import CannotRead
from posenc.tokens.positions import Positions, positions_for


class Cache(checks.ChecksArguments, CacheOperations):
    """The KV cache of a model: one layer cache for each attention layer.

    Without `slots` it grows; with `slots` it is static, and with `rolling` it keeps the newest tokens only.
    """

    def __init__(self, layers: int, *, slots: int | None = None, rolling: bool = False) -> None:
        if rolling and slots is None:
            raise ValueError("a rolling cache needs a number of slots; give slots=window + chunk - 1")
        checks.whole("layers", layers, 1)
        self.layers: list[GrowingCache | SlotCache] = [
            GrowingCache() if slots is None else SlotCache(slots, rolling=rolling) for _ in range(layers)
        ]

    def __copy__(self) -> "Cache":
        """Return an independent cache; both share memory until one of them writes."""
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

    def set_positions(self, at: Positions) -> None:
        moved_keys = [(layer, keys_moved_to(layer.keys, at)) for layer in self.layers if layer.keys is not None]
        for layer, keys in moved_keys:
            layer.store(keys)

    def crop(self, tokens: int | Tensor) -> None:
        # Each layer checks for itself: a rolling one refuses if it has overwritten tokens.
        for layer in self.layers:
            layer.crop(tokens)

    def rows(self, rows: Tensor) -> None:
        rows = row_numbers(rows, self.batch)
        for layer in self.layers:
            layer.rows(rows)

    def splice(self, source_cache: "Cache", place: int) -> None:
        """Insert the tokens of another cache in front of the token of order `place`.

        The other cache is of the same model, has as many rows or one for all, and stays as it is, so a document that
        was computed once can follow any prompt. All keys are copied once.
        Raises ValueError for a cache of another number of layers, for a place behind the last token, for tokens that do
        not count up by one, and for keys that cannot be moved.
        """
        if not isinstance(source_cache, Cache) or len(source_cache.layers) != len(self.layers):
            raise ValueError(f"splice takes the cache of the same model, got {checks.display(source_cache)}")
        pairs = zip(self.layers, source_cache.layers, strict=True)
        joint_keys = [layer.with_spliced(source, place) for layer, source in pairs]
        for layer, keys in zip(self.layers, joint_keys, strict=True):
            if keys is not None:
                layer.store(keys)

    def save(self, file: str | Path) -> None:
        """Write keys and positions to a safetensors file, without the free slots.

        Raises ValueError for an empty cache, CannotWrite, and ImportError where safetensors is not installed.
        """
        layers = [keys for layer in self.layers if layer.keys is not None and (keys := compact(layer.keys)) is not None]
        if len(layers) < len(self.layers):
            raise ValueError("an empty cache has nothing to save; give it tokens first")
        first = self.layers[0]
        slots, rolling = (first.slots, first.rolling) if isinstance(first, SlotCache) else (None, False)
        files.write(file, layers, slots=slots, rolling=rolling)

    @classmethod
    def load(cls, file: str | Path, device: torch.device | str | None = None, *, slots: int | None = None) -> "Cache":
        """Return the cache that `save` wrote, of the same kind and with the same tokens.

        slots  the most that a static cache may have; None: as many as fit in 256 MiB, or in 16 times the file's size

        Nothing in a file names code. Raises CannotRead for any other file, a damaged one, and one with more slots.
        """
        layers, header = files.read(file, slots)
        cache = cls(len(layers), slots=header["slots"], rolling=header["rolling"])
        try:
            for layer, keys in zip(cache.layers, layers, strict=True):
                layer.store(keys if device is None else keys.to(device))
        except ValueError as error:
            raise CannotRead(f"its tokens do not fit its slots: {error}", file=Path(file)) from None
        return cache

    def next(self, tokens: int, device: torch.device | None = None) -> Positions:
        """Return the positions of the next `tokens` tokens: each row continues after its own last one."""
        return positions_for(tokens, None, device=device, past_at=self.held)
