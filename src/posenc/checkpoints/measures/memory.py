"""What a pass holds in memory, by three products: the weights, the keys and values, and the logits of a chunk."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.measures.perplexity import DEVICE
from posenc.checkpoints.vocabulary.bounds import HEAD_DIMS, HEADS, KV_HEADS, WIDTHS
from posenc.foreign.text import told

ALL = 1 << 62
"""More tokens than any text has."""

ERROR = "in passes that were measured, what was held lay within 25 % or 500 MiB of that sum, whichever is more"
"""How near the sum is: docs/checkpoints/hardware.md."""


@dataclass(frozen=True)
class Memory:
    """What a pass over texts of one length holds on the device (bytes).

    weights  of the model, its buffers included
    cache    keys and values, up to a layer's window
    logits   of a chunk; of a model that is no decoder, of the whole text
    """

    weights: int
    cache: int
    logits: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.logits


def of_pass(
    model: Any, length: int, *, dtype: torch.dtype, chunk: int = 1024, batch: int = 1, cache: str = DEVICE
) -> Memory:
    """The memory of a pass over texts of a length (tokens), of a model whose tensors may be shapes alone.

    dtype  of the weights and of all else
    cache  of one in the memory of the machine, the layer at work and the next one are on the device

    Nothing is run. Not counted are states that do not grow with the text, what layers work in, masks, and libraries.
    """
    size, decodes = dtype.itemsize, model.can_generate()
    head = model.get_output_embeddings()
    rows = min(chunk, length - 1) if decodes else length
    layers = [batch * size * wide * min(length, most) for wide, most in cached(model.config)[0]] if decodes else []
    kept = sum(layers) if cache == DEVICE else min(sum(layers), 2 * max(layers, default=0))
    logits = 0 if head is None else batch * rows * head.weight.shape[0] * size
    return Memory(size * sum(tensor.numel() for tensor in weights_of(model)), kept, logits)


def weights_of(model: Any) -> list[Tensor]:
    """A model's parameters and buffers, each once."""
    return list({id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values())


def cached(config: Any) -> tuple[list[tuple[int, int]], str]:
    """Of each layer with keys and values, the numbers that a token leaves in the cache, and of how many tokens at most.

    The layers are those of the cache that transformers makes for the config: windows end it, layers that share the keys
    of others or keep a state alone have none. Of an encoder with a decoder, each layer keeps the keys of the encoded
    text too, which is taken to be as long.

    With it, in words, what of the cache is not counted, or nothing.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    try:
        text = config.get_text_config(decoder=True)
        layers = DynamicCache(config=config).layers
        # In a transformers that knows models whose layers differ, each has a config of its own.
        configs = getattr(text, "per_layer_config", [text] * len(layers))
        times = 2 if config.is_encoder_decoder else 1
        found = [
            (times * numbers_of(own, place), getattr(layer, "sliding_window", None) or ALL)
            for place, (layer, own) in enumerate(zip(layers, configs, strict=False))
            if isinstance(layer, DynamicLayer)
        ]
    except Exception as error:
        # Code of many hands, which calls its sizes as it likes.
        return [], f"keys and values, which its config does not tell ({told(error)})"
    states = sum(hasattr(layer, "recurrent_states") for layer in layers)
    return found, f"the states of {states} layers" if states else ""


def scores_of(config: Any, chunk: int, length: int) -> int:
    """How many scores a layer makes of a chunk of queries, and a text of a length, where its kernel is not fused."""
    return (size_of(config.get_text_config(decoder=True), HEADS) or 1) * min(chunk, length) * length


def size_of(config: Any, names: tuple[str, ...], place: int = 0) -> int | None:
    """A size of a layer by the first of its names that a config has."""
    found = next((value for name in names if (value := getattr(config, name, None))), None)
    return found[place] if isinstance(found, (list, tuple)) else found


def numbers_of(config: Any, place: int) -> int:
    """The numbers of keys and values that a token leaves in a layer's cache.

    2 heads * head_dim; of latent attention (MLA) the latent and the channels that turn, as transformers keeps them
    """
    if latent := getattr(config, "kv_lora_rank", None):
        return latent + config.qk_rope_head_dim

    heads = size_of(config, HEADS, place) or 1
    shared = getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False)
    wide = size_of(config, HEAD_DIMS, place) or (size_of(config, WIDTHS, place) or 0) // heads
    values = getattr(config, "v_head_dim", None) or wide
    return (1 if shared else size_of(config, KV_HEADS, place) or heads) * (wide + values)
