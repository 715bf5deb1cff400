"""What a pass holds in memory, by three products: the weights, the keys and values, and the logits of a chunk."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from posenc.checkpoints.formats.load import dtype_of
from posenc.checkpoints.measures.perplexity import DEVICE
from posenc.checkpoints.vocabulary.bounds import HEAD_DIMS, HEADS, KV_HEADS, WIDTHS
from posenc.foreign.text import told

ALL = 1 << 62
"""More tokens than any text has."""

ERROR = "in passes that were measured, what was held lay within 25 % or 500 MiB of that sum, whichever is more"
"""How near the sum is: docs/checkpoints/hardware.md."""

Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Memory:
    """What a pass over a text holds on the device (bytes).

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


def of_pass(model: Any, length: int, *, dtype: torch.dtype, chunk: int = 1024, cache: str = DEVICE) -> Memory:
    """The memory of a pass over a text of a length (tokens), of a model whose tensors may be shapes alone.

    dtype  of the weights and of all else
    cache  of one in the memory of the machine, the layer at work and the next one are on the device

    Nothing is run. Not counted are states that do not grow with the text, what layers work in, masks, and libraries.
    """
    size, decodes = dtype.itemsize, model.can_generate()
    head = model.get_output_embeddings()
    rows = min(chunk, length - 1) if decodes else length
    layers = [size * wide * min(length, most) for wide, most in cached(model.config)] if decodes else []
    cache_bytes = sum(layers) if cache == DEVICE else min(sum(layers), 2 * max(layers, default=0))
    logits = 0 if head is None else rows * head.weight.shape[0] * size
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return Memory(size * sum(tensor.numel() for tensor in tensors.values()), cache_bytes, logits)


def cached(config: Any) -> list[tuple[int, int]]:
    """Of each layer with keys and values, the numbers that a token leaves in the cache, and of how many tokens at most.

    The layers are those of the cache that transformers makes for the config: windows end it, layers that share the keys
    of others or keep a state alone have none. Of an encoder with a decoder, each layer keeps the keys of the encoded
    text too, which is taken to be as long. Empty where the config does not tell.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    try:
        text = config.get_text_config(decoder=True)
        layers = DynamicCache(config=config).layers
        # In a transformers that knows models whose layers differ, each has a config of its own.
        configs = getattr(text, "per_layer_config", [text] * len(layers))
        times = 2 if config.is_encoder_decoder else 1
        return [
            (times * numbers_of(own, place), getattr(layer, "sliding_window", None) or ALL)
            for place, (layer, own) in enumerate(zip(layers, configs, strict=False))
            if isinstance(layer, DynamicLayer)
        ]
    except Exception:
        # Code of many hands, which calls its sizes as it likes.
        return []


def numbers_of(config: Any, place: int) -> int:
    """The numbers of keys and values that a token leaves in a layer's cache.

    2 heads * head_dim; of latent attention (MLA) the latent and the channels that turn, as transformers keeps them
    """
    if latent := getattr(config, "kv_lora_rank", None):
        return latent + config.qk_rope_head_dim

    def size(names: tuple[str, ...]) -> int | None:
        value = next((value for name in names if (value := getattr(config, name, None))), None)
        return value[place] if isinstance(value, (list, tuple)) else value

    heads = size(HEADS) or 1
    shared = getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False)
    wide = size(HEAD_DIMS) or (size(WIDTHS) or 0) // heads
    values = getattr(config, "v_head_dim", None) or wide
    return (1 if shared else size(KV_HEADS) or heads) * (wide + values)


def plan(model: Any, lengths: Sequence[int], *, dtype: str, device: str, chunk: int, cache: str) -> dict[str, Any]:
    """What passes at some lengths (tokens) hold, as JSON, by the formula of `of_pass`.

    dtype, device, chunk, cache  how the texts go through the model, as in the settings of `posenc extend`
    """
    kind = dtype_of(dtype)
    assert kind is not None
    passes = {n: of_pass(model, n, dtype=kind, chunk=chunk, cache=cache) for n in lengths}
    rows = [{"length": length, **asdict(memory), "total": memory.total} for length, memory in passes.items()]
    way = {"dtype": dtype, "device": device, "chunk": chunk, "cache": cache}
    return {"way": way, "rows": rows}


@contextmanager
def enough(words: str) -> Generator[None]:
    """Says of a device that has no room left what did not fit, what is kept, and what would help."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"{words}: the device has no memory left ({told(error)}). Finished passes are kept. Less is taken by "
            f"--dtype bfloat16, a smaller --chunk or --factor, and on CUDA by --cache cpu or --device auto; "
            f"there the environment variable PYTORCH_ALLOC_CONF=expandable_segments:True leaves fewer holes."
        ) from error


def sentences(plan: Plan) -> list[str]:
    """The plan in words."""
    way, last = plan["way"], plan["rows"][-1]
    options = f"{way['dtype']} on {way['device']}, chunks of {way['chunk']:,}"
    besides = "" if last["cache"] else " and keys and values, of which its config tells nothing"
    return [
        f"By plan {last['length']:,} tokens take {size(last['total'])} ({options}, cache on {way['cache']}).",
        f"Counted are weights, keys and values, and the logits of a chunk, by the config alone; not counted is what "
        f"layers work in{besides}: {ERROR}.",
    ]


def table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """What a pass takes at each length: headers and rows."""
    columns = ("weights", "cache", "logits", "total")
    return ["tokens", *columns], [
        [f"{row['length']:,}", *(size(row[name]) for name in columns)] for row in plan["rows"]
    ]


def size(count: float) -> str:
    """Bytes as a person says them.

    >>> size(3 << 29), size(5 << 20)
    ('1.5 GiB', '5.0 MiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
