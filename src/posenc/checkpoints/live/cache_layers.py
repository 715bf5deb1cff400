"""The layers of a transformers cache: what each holds, and how other keys and values are put into it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc import checks

Pair = tuple[Tensor, Tensor]
"""What a layer calls its keys and its values, [B, KV, S, D] each."""


@dataclass(frozen=True)
class CacheLayer:
    """One layer of a transformers cache, of the two classes that grow with their tokens and hold them in their order.

    number  of the layer in the model
    layer   transformers' object
    """

    number: int
    layer: Any

    @property
    def tokens(self) -> int:
        """How many tokens it has taken in, those included that it has forgotten since."""
        return int(self.layer.get_seq_length())

    @property
    def most(self) -> int | None:
        """How many slots it keeps at most; None where it keeps all."""
        return self.layer.sliding_window - 1 if self.layer.is_sliding else None

    @property
    def pair(self) -> Pair | None:
        """What it holds, the oldest token first; None where that is nothing."""
        return (self.layer.keys, self.layer.values) if self.tokens else None

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        if not self.layer.is_initialized:
            return 0
        return sum(held.untyped_storage().nbytes() for held in (self.layer.keys, self.layer.values))

    def kept(self, tokens: int) -> int:
        """How many slots it keeps of so many tokens."""
        return tokens if self.most is None else min(tokens, self.most)

    def hold(self, pair: Pair, tokens: int) -> None:
        """Hold these slots, the last ones of so many tokens, in place of those before."""
        self.layer.keys, self.layer.values = pair
        if self.layer.is_sliding:
            self.layer.cumulative_length = tokens


def layers_of(cache: Any) -> list[CacheLayer]:
    """The layers of a transformers cache that hold keys.

    Raises TypeError for what is no such cache, and ValueError for layers that do not grow with their tokens: static
    ones, quantised ones, states of recurrent layers.
    """
    from transformers import Cache, EncoderDecoderCache, cache_utils

    if not isinstance(cache, Cache):
        raise TypeError(f"expected a cache of transformers, such as DynamicCache(), got {checks.shown(cache)}")
    if isinstance(cache, EncoderDecoderCache):
        raise ValueError(
            "a cache of an encoder-decoder holds the keys of an encoder too, whose tokens have no place among the "
            "decoder's; give the cache of a decoder"
        )
    if cache.offloading:
        raise ValueError("an offloaded cache is on its way between devices; make the cache with offloading=False")
    known = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
    found = []
    for number, layer in enumerate(cache.layers):
        if type(layer) in known:
            found.append(CacheLayer(number, layer))
        elif not isinstance(layer, getattr(cache_utils, "DummyLayer", ())):
            raise ValueError(
                f"layer {number} of the cache is a {type(layer).__name__}, whose tokens stay where they are; use "
                f"DynamicCache(), whose layers are DynamicLayer and DynamicSlidingWindowLayer"
            )
    return found


def device_of(layers: list[CacheLayer]) -> torch.device:
    """Where the keys are."""
    return next((layer.layer.keys.device for layer in layers if layer.tokens), torch.device("cpu"))
