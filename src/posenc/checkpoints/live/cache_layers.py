"""The layers of a transformers cache: what each holds, and how other keys and values are put into it."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc import checks

Pair = tuple[Tensor, Tensor]
"""What a layer calls its keys and its values, [B, KV, S, D] each."""


@dataclass(frozen=True)
class CacheLayer:
    """One layer of a transformers cache, of the four classes whose slots lie in the order of their tokens.

    number  of the layer in the model
    layer   transformers' object
    """

    number: int
    layer: Any

    @property
    def is_static(self) -> bool:
        return hasattr(self.layer, "max_cache_len")

    @property
    def tokens(self) -> int:
        """How many tokens it has taken in, those included that it has forgotten since."""
        return int(self.layer.get_seq_length())

    @property
    def most(self) -> int | None:
        """How many slots it keeps at most; None where it keeps all."""
        if not self.layer.is_sliding:
            return None
        return self.layer.max_cache_len if self.is_static else self.layer.sliding_window - 1

    @property
    def pair(self) -> Pair | None:
        """What it holds, the oldest token first; None where that is nothing."""
        held = self.tokens
        if held == 0:
            return None
        slots = min(held, self.layer.max_cache_len) if self.is_static else self.layer.keys.shape[2]
        return self.layer.keys[:, :, :slots], self.layer.values[:, :, :slots]

    @property
    def bytes(self) -> int:
        """The memory that it takes, with the room for tokens to come."""
        if not self.layer.is_initialized:
            return 0
        return sum(held.untyped_storage().nbytes() for held in (self.layer.keys, self.layer.values))

    def kept(self, tokens: int) -> int:
        """How many slots it keeps of so many tokens."""
        return tokens if self.most is None else min(tokens, self.most)

    def check_room(self, tokens: int) -> None:
        """Raises ValueError where so many tokens have no slots."""
        if self.is_static and not self.layer.is_sliding and tokens > self.layer.max_cache_len:
            raise ValueError(
                f"{tokens} tokens have no room in a static cache of {self.layer.max_cache_len} slots; make the cache "
                f"with max_cache_len={tokens} or more"
            )

    def hold(self, pair: Pair, tokens: int) -> None:
        """Hold these slots, the last ones of so many tokens, in place of those before."""
        layer, slots = self.layer, pair[0].shape[2]
        if not self.is_static:
            layer.keys, layer.values = pair
            if layer.is_sliding:
                layer.cumulative_length = tokens
            return
        # What is written in place belongs to the mode in which it was made.
        with torch.inference_mode() if layer.keys.is_inference() else nullcontext():
            layer.keys, layer.values = map(written, (layer.keys, layer.values), pair)
            layer.cumulative_length.fill_(slots)
        layer.batch_size = len(pair[0])
        if layer.is_sliding:
            layer.cumulative_length_int = tokens

    def fork(self) -> Any:
        """A layer of transformers that goes its own way from here; what both hold is shared unless it is written in
        place."""
        twin = object.__new__(type(self.layer))
        vars(twin).update(vars(self.layer))
        if self.is_static:
            # It is written in place.
            copied = {n: fact.clone() for n, fact in vars(twin).items() if isinstance(fact, Tensor)}
            vars(twin).update(copied)
        return twin


def written(memory: Tensor, new: Tensor) -> Tensor:
    """The memory of a static layer with slots put into its first ones; another where the rows are more or fewer."""
    if len(memory) != len(new):
        memory = memory.new_zeros(len(new), *memory.shape[1:])
    if new.data_ptr() != memory.data_ptr():
        shared = new.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
        memory[:, :, : new.shape[2]] = new.clone() if shared else new
    return memory


def layers_of(cache: Any) -> list[CacheLayer]:
    """The layers of a transformers cache that hold keys.

    Raises TypeError for what is no such cache, and ValueError for layers whose tokens cannot be told apart: quantised
    ones, states of recurrent layers, and all others of which it is not known how they lie.
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
    known = (
        cache_utils.DynamicLayer,
        cache_utils.DynamicSlidingWindowLayer,
        cache_utils.StaticLayer,
        cache_utils.StaticSlidingWindowLayer,
    )
    found = []
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, cache_utils.BaseQuantizedLayer):
            raise ValueError(
                f"layer {number} of the cache is quantised ({type(layer).__name__}), and a key that was rounded so "
                f"coarsely is not turned again; use DynamicCache or StaticCache"
            )
        if type(layer) in known:
            found.append(CacheLayer(number, layer))
        elif not isinstance(layer, getattr(cache_utils, "DummyLayer", ())):
            raise ValueError(
                f"layer {number} of the cache is a {type(layer).__name__}, from which no single token can be taken; "
                f"its tokens can be moved in DynamicLayer, StaticLayer and their sliding windows alone"
            )
    return found


def device_of(layers: list[CacheLayer]) -> torch.device:
    """Where the keys are."""
    return next((layer.layer.keys.device for layer in layers if layer.tokens), torch.device("cpu"))
