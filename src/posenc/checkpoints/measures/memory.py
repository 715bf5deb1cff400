"""Estimate the memory of a pass: the sum of weights, keys and values, and a chunk's logits."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from posenc.checkpoints.formats.load import dtype_of
from posenc.checkpoints.measures.perplexity import DEVICE
from posenc.checkpoints.vocabulary.bounds import HEAD_DIMS, HEADS, KV_HEADS, WIDTHS
from posenc.foreign.text import error_text

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NO_LIMIT = 1 << 62
"""More tokens than any text has."""

PLAN_ERROR = "in passes that were measured, what was held lay within 25 % or 500 MiB of that sum, whichever is more"
"""The accuracy of the sum: docs/checkpoints/hardware.md."""

Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Memory:
    """The memory of a pass over a text on the device (bytes).

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


def pass_memory(
    model: "PreTrainedModel", length: int, *, dtype: torch.dtype, chunk: int = 1024, cache: str = DEVICE
) -> Memory:
    """Estimate the memory of a pass over a text of a length (tokens). The model may be on the meta device.

    dtype  of the weights and of all else
    cache  "cpu" leaves only the keys of the layer at work and of the next one on the device

    Nothing is run. Not counted are states that do not grow with the text, activations, masks, and libraries.
    """
    size, decodes = dtype.itemsize, model.can_generate()
    head = model.get_output_embeddings()
    rows = min(chunk, length - 1) if decodes else length
    layers = [size * width * min(length, longest) for width, longest in cache_sizes(model.config)] if decodes else []
    cache_bytes = sum(layers) if cache == DEVICE else min(sum(layers), 2 * max(layers, default=0))
    logits = 0 if head is None else rows * head.weight.shape[0] * size
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return Memory(size * sum(tensor.numel() for tensor in tensors.values()), cache_bytes, logits)


def cache_sizes(config: "PreTrainedConfig") -> list[tuple[int, int]]:
    """Return each cached layer's numbers per token, and its largest number of tokens.

    The layers are those of the cache that transformers makes for the config: a window limits the tokens, and layers
    that share another's keys or keep only a state are left out. In an encoder-decoder each layer also keeps the keys
    of the encoded text, which counts as equally long. Empty where the config does not tell.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    try:
        text = config.get_text_config(decoder=True)
        layers = DynamicCache(config=config).layers
        # Versions of transformers that know models whose layers differ give each layer its own config.
        configs = getattr(text, "per_layer_config", [text] * len(layers))
        times = 2 if config.is_encoder_decoder else 1
        return [
            (times * kv_numbers(layer_config, place), getattr(layer, "sliding_window", None) or NO_LIMIT)
            for place, (layer, layer_config) in enumerate(zip(layers, configs, strict=False))
            if isinstance(layer, DynamicLayer)
        ]
    except Exception:
        # Models of transformers have many authors, who name their sizes freely.
        return []


def kv_numbers(config: "PreTrainedConfig", place: int) -> int:
    """Return how many numbers a token leaves in a layer's cache of keys and values.

    2 heads * head_dim; for latent attention (MLA) the latent and the rotary channels, as transformers caches them
    """
    if latent := getattr(config, "kv_lora_rank", None):
        return latent + config.qk_rope_head_dim

    def size(names: tuple[str, ...]) -> int | None:
        value = next((value for name in names if (value := getattr(config, name, None))), None)
        return value[place] if isinstance(value, (list, tuple)) else value

    heads = size(HEADS) or 1
    is_multi_query = getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False)
    width = size(HEAD_DIMS) or (size(WIDTHS) or 0) // heads
    values = getattr(config, "v_head_dim", None) or width
    return (1 if is_multi_query else size(KV_HEADS) or heads) * (width + values)


def plan_memory(
    model: "PreTrainedModel", lengths: Sequence[int], *, dtype: str, device: str, chunk: int, cache: str
) -> dict[str, Any]:
    """Return the memory of passes at some lengths (tokens), as JSON, by the formula of `pass_memory`.

    dtype, device, chunk, cache  as in the settings of `posenc extend`
    """
    kind = dtype_of(dtype)
    assert kind is not None
    passes = {n: pass_memory(model, n, dtype=kind, chunk=chunk, cache=cache) for n in lengths}
    rows = [{"length": length, **asdict(memory), "total": memory.total} for length, memory in passes.items()]
    way = {"dtype": dtype, "device": device, "chunk": chunk, "cache": cache}
    return {"way": way, "rows": rows}


@contextmanager
def explain_out_of_memory(words: str) -> Generator[None]:
    """Explain an out-of-memory error: what did not fit, what is kept, and what would help."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"{words}: the device has no memory left ({error_text(error)}). Finished passes are kept. Less is taken by "
            f"--dtype bfloat16, a smaller --chunk or --factor, and on CUDA by --cache cpu or --device auto; "
            f"there the environment variable PYTORCH_ALLOC_CONF=expandable_segments:True leaves fewer holes."
        ) from error


def plan_sentences(plan: Plan) -> list[str]:
    """Return the plan as sentences."""
    way, last = plan["way"], plan["rows"][-1]
    options = f"{way['dtype']} on {way['device']}, chunks of {way['chunk']:,}"
    omission = "" if last["cache"] else " and keys and values, of which its config tells nothing"
    return [
        f"By plan {last['length']:,} tokens take {format_bytes(last['total'])} ({options}, cache on {way['cache']}).",
        f"Counted are weights, keys and values, and the logits of a chunk, by the config alone; not counted is what "
        f"layers work in{omission}: {PLAN_ERROR}.",
    ]


def memory_table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Return a table of the memory of a pass at each length: headers and rows."""
    columns = ("weights", "cache", "logits", "total")
    return ["tokens", *columns], [
        [f"{row['length']:,}", *(format_bytes(row[name]) for name in columns)] for row in plan["rows"]
    ]


def format_bytes(count: float) -> str:
    """Return a number of bytes in GiB or MiB.

    >>> format_bytes(3 << 29), format_bytes(5 << 20)
    ('1.5 GiB', '5.0 MiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
