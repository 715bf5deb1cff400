"""Heads: what they make of keys beyond the trained distances, read from the queries and keys of one pass."""

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.kinds.rotary.keys import OURS
from posenc.checkpoints.live.unturned import decoder_of
from posenc.checkpoints.measures.measure import Tell
from posenc.checkpoints.measures.perplexity import predictions
from posenc.checkpoints.probing.bands import Band

NAME = f"{OURS}watched"
"""What attention that is watched is called in transformers' interface, while it is."""

QUERIES = 32
"""How many queries at the end of a text are read."""


@dataclass(frozen=True)
class Head:
    """One head, over the last queries of a text, with logits as products of turned queries and keys times the scale.

    layer, head
    weight  share of the softmax of these logits that lies on keys further away than any in training
    uniform what that share would be if all keys weighed alike
    spread  for each band E_far[(c - m)^2] / E_near[(c - m)^2], where c is what the band's channels add to a logit and m
            its mean over the near keys of a query: 1 where far keys look like near ones, above where they do not
    whole   the same of whole logits
    """

    layer: int
    head: int
    weight: float
    uniform: float
    spread: tuple[float, ...]
    whole: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def watched(model: Any, note: Callable[[int, Tensor, Tensor, float], None]) -> Generator[None]:
    """The model, telling of each attention: its layer, turned queries and keys [B, heads, T, D], and the scale.

    Raises ValueError for a model that attends by code of its own.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    decoder = decoder_of(model)
    if not decoder._supports_attention_backend:
        raise ValueError(f"{type(decoder).__name__} attends by code of its own, where heads cannot be watched")

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **asked: Any) -> Any:
        scale = asked.get("scaling")
        note(module.layer_idx, query, key, query.shape[-1] ** -0.5 if scale is None else scale)
        return sdpa_attention_forward(module, query, key, value, mask, **asked)

    config, before = decoder.config, decoder.config._attn_implementation_internal
    # A name for this model alone: another may be watched meanwhile.
    name = f"{NAME}-{id(model)}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    config._attn_implementation_internal = name
    try:
        yield
    finally:
        config._attn_implementation_internal = before
        for interface in (AttentionInterface, AttentionMaskInterface):
            interface._global_mapping.pop(name, None)


def heads_of(
    model: Any,
    ids: Tensor,
    rotary: Any,
    bands: Sequence[Band],
    trained: int,
    layers: Collection[int],
    *,
    chunk: int = 1024,
    tell: Tell | None = None,
) -> list[Head]:
    """The heads of some layers, from one pass over a text [T] that is longer than the trained length.

    rotary  what turns queries and keys in these layers
    bands   of its pairs
    layers  those that see beyond the trained length

    Caps of logits, sinks and biases beside them are not in these numbers.

    Raises ValueError for a text that is not longer than the trained length, and as `watched` does.
    """
    read = len(ids) - 1
    if read <= trained:
        raise ValueError(f"heads are read in a text longer than the trained {trained:,} tokens, got {len(ids):,}")
    # The last chunk holds the queries that are read.
    chunk = next(n for n in range(chunk, 0, -1) if read % n == 0 or read % n >= min(n, QUERIES))
    found: list[Head] = []

    def note(layer: int, query: Tensor, key: Tensor, scale: float) -> None:
        # Before the last chunk not all keys are there.
        if layer in layers and key.shape[2] == read:
            found.extend(of_layer(layer, query[0], key[0], scale, rotary, bands, trained))

    with watched(model, note):
        for _ in predictions(model, ids, chunk, tell, last=1):
            pass
    return found


def of_layer(
    layer: int, query: Tensor, key: Tensor, scale: float, rotary: Any, bands: Sequence[Band], trained: int
) -> list[Head]:
    """The heads of a layer, from turned queries [H, T, D] and keys [KV, S, D]; the last query is the last key's."""
    # Not every device has float64.
    query = query[:, -QUERIES:].cpu().double()
    key = key.cpu().double().repeat_interleave(len(query) // len(key), 0)
    rows, tokens = query.shape[1], key.shape[1]
    distance = torch.arange(tokens - rows, tokens)[:, None] - torch.arange(tokens)
    near, far = (distance >= 0) & (distance < trained), distance >= trained
    # A query that sees nothing far says nothing of it.
    kept = far.any(1)
    query, near, far, distance = query[:, kept], near[kept], far[kept], distance[kept]

    def spread(logits: Tensor) -> Tensor:
        mean = (logits * near).sum(2, keepdim=True) / near.sum(1)[:, None]
        square = (logits - mean).square()
        return ((square * far).sum((1, 2)) / far.sum()) / ((square * near).sum((1, 2)) / near.sum()).clamp(min=1e-300)

    logits = query @ key.mT * scale
    weights = logits.masked_fill(distance < 0, -torch.inf).softmax(2)
    weight = (weights * far).sum(2).mean(1)
    uniform = float((far.sum(1) / (distance >= 0).sum(1)).mean())
    parts = [query[..., of] @ key[..., of].mT * scale for of in (channels_of(rotary, band) for band in bands)]
    whole, *by_band = (spread(part).tolist() for part in (logits, *parts))
    return [
        Head(layer, head, share, uniform, tuple(band[head] for band in by_band), whole[head])
        for head, share in enumerate(weight.tolist())
    ]


def channels_of(rotary: Any, band: Band) -> list[int]:
    """The channels of a head whose pairs are in a band."""
    pairs = range(band.first, band.end)
    if rotary.layout == "half":
        return [channel for pair in pairs for channel in (pair, pair + rotary.width // 2)]
    return [channel for pair in pairs for channel in (2 * pair, 2 * pair + 1)]
