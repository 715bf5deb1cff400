"""Models of transformers as graphs: inputs and outputs as of posenc's own, through their own cache and masks."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.kinds.calls import cache_name
from posenc.export.graphs import BATCH, EXAMPLE, PAST, TOKENS, Graph, placed, positions_in_a_row
from posenc.masks import Mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls the layers that see all, and those with a window."""


class CheckpointStep(nn.Module):
    """A decoder of transformers that goes on behind what its layers remember, which may be nothing."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor, past_positions: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        # Without the config: a window is a matter of the mask, and a layer that forgot tokens would need to know which.
        cache, name = DynamicCache(), cache_name(self.model)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        present = torch.cat((past_positions, positions), 1)
        found = self.model(
            input_ids=ids,
            position_ids=positions.clamp(min=0),
            attention_mask=masks_for(self.model, positions, present),
            use_cache=True,
            **{name: cache},
        )
        return found.logits, present, *tensors_of(getattr(found, name))


class CheckpointWhole(nn.Module):
    """An encoder of transformers: its logits, or its hidden states where it has no output layer."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        given = {"position_ids": positions.clamp(min=0)} if takes_positions(self.model) else {}
        return said(self.model(input_ids=ids, attention_mask=(positions >= 0).long(), **given))


def masks_for(model: "PreTrainedModel", positions: Tensor, present: Tensor) -> Any:
    """Who sees whom, as a floating tensor [B, 1, T, S]; one for each kind of layer where the model has several."""
    config = model.config.get_text_config()
    window, kinds = getattr(config, "sliding_window", None), set(getattr(config, "layer_types", None) or ())

    def mask(window: int | None) -> Tensor:
        allowed = Mask(causal=True, window=window).allowed(placed(positions), placed(present))
        lowest = torch.finfo(model.dtype).min
        return torch.zeros(allowed.shape, dtype=model.dtype).masked_fill(~allowed, lowest)

    if SLIDING in kinds:
        return {FULL: mask(None), SLIDING: mask(window)}
    use = getattr(config, "use_sliding_window", True) and not kinds
    return mask(window if use else None)


def tensors_of(cache: Any) -> list[Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def said(found: Any) -> Tensor:
    """What a model of transformers answers: logits, or hidden states."""
    return found.logits if getattr(found, "logits", None) is not None else found.last_hidden_state


def takes_positions(model: "PreTrainedModel") -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def checkpoint_graph(model: "PreTrainedModel", *, cached: bool | None = None) -> Graph:
    """The graph of a model of transformers: of a decoder one with a cache, of an encoder the whole pass.

    Raises ValueError for an encoder-decoder, and for a decoder without a cache.
    """
    name, config = type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder; of transformers' models, decoders and encoders are exported")
    decodes = model.can_generate()
    if (cached and not decodes) or (cached is False and decodes):
        raise ValueError(f"{name} is exported {'with' if decodes else 'without'} a cache; leave cached out")
    return step_of(model) if decodes else whole_of(model)


def step_of(model: "PreTrainedModel") -> Graph:
    batch, tokens, past = EXAMPLE[BATCH], EXAMPLE[TOKENS], EXAMPLE[PAST]
    from transformers import DynamicCache

    cache, before = DynamicCache(), positions_in_a_row(batch, 0, past, 1)
    with torch.no_grad():
        ids = torch.zeros(batch, past, dtype=torch.long)
        model(input_ids=ids, position_ids=before, use_cache=True, **{cache_name(model): cache})
    names = [f"{layer}.{fact}" for layer in range(len(cache.layers)) for fact in ("key", "value")]
    inputs = {
        "ids": torch.zeros(batch, tokens, dtype=torch.long),
        "positions": positions_in_a_row(batch, past, tokens, 1),
        "past_positions": before,
        **{f"past.{name}": tensor for name, tensor in zip(names, tensors_of(cache), strict=True)},
    }
    free = {name: {0: BATCH, 2: PAST} for name in inputs}
    free |= {name: {0: BATCH, 1: TOKENS} for name in ("ids", "positions")} | {"past_positions": {0: BATCH, 1: PAST}}
    outputs = ["logits", "present_positions", *(f"present.{name}" for name in names)]
    return Graph("decoder", CheckpointStep(model), inputs, free, outputs, answer_of(model))


def whole_of(model: "PreTrainedModel") -> Graph:
    batch, tokens = EXAMPLE[BATCH], EXAMPLE[TOKENS]
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    inputs = {"ids": ids, "positions": positions_in_a_row(batch, 0, tokens, 1)}
    free = {name: {0: BATCH, 1: TOKENS} for name in inputs}
    return Graph("whole", CheckpointWhole(model), inputs, free, ["logits"], answer_of(model))


def answer_of(model: "PreTrainedModel") -> Callable[..., Tensor]:
    def answer(ids: Tensor, positions: Tensor) -> Tensor:
        longest = getattr(model.config, "max_position_embeddings", None)
        if longest is not None and ids.shape[1] > longest:
            raise ValueError(f"{type(model).__name__} has {longest} positions, got {ids.shape[1]} tokens")
        return said(model(input_ids=ids))

    return answer
