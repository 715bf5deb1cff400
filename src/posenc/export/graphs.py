"""Models as graphs from tensors to tensors, for any length.

Positions are an input, and no graph counts tokens by itself: so a step with a cache is the same computation as the
whole sequence, for any lengths of both.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc.cache import Cache
from posenc.encoding.base import Encoding
from posenc.encoding.keys import Keys
from posenc.model.decoder import Decoder
from posenc.model.encoder_decoder import EncoderDecoder
from posenc.tokens.positions import Positions

BATCH, TOKENS, PAST, SOURCE = "batch", "tokens", "past", "source"
"""The names of the free sizes of a graph."""

EXAMPLE = {BATCH: 2, TOKENS: 4, PAST: 3, SOURCE: 5}
"""The sizes that a graph is traced with: no 0 or 1, and no two equal, since torch would specialise on them."""


@dataclass(frozen=True)
class Graph:
    """A module from tensors to tensors, and their names.

    kind     decoder, whole or translation: the signature, as in the guide
    module   the module to trace, around the model
    inputs   name -> an example, in the order of the module's arguments
    free     name -> axis -> name of its free size
    outputs  the names of the outputs, in order
    """

    kind: str
    module: "Whole | Translation | Step"
    inputs: Mapping[str, Tensor]
    free: Mapping[str, Mapping[int, str]]
    outputs: Sequence[str]

    @property
    def axes(self) -> int:
        """The number of coordinates of a position."""
        positions = self.inputs["positions"]
        return 1 if positions.dim() == 2 else positions.shape[2]

    def answer(self, ids: Tensor, positions: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the model's own logits for ids [B, T], positions as in `inputs` (and a source [B, S]).

        It does not use the forward pass of `module`, since it is the reference for it.
        """
        horizon = ids.shape[1] if self.module.horizon else None
        positions_in_order = Positions.count(ids.shape[1]) if positions.dim() == 2 else Positions.of(positions)
        at = positions_in_order.with_horizon(horizon)
        if source is None:
            return self.module.model(ids, positions=at)
        of_source = Positions.count(source.shape[1]).with_horizon(horizon)
        return self.module.model(source, ids, positions=at, source_positions=of_source)


def positions_of(positions: Tensor, first: int = 0) -> Positions:
    """Return positions [B, T] or [B, T, A] of a graph as Positions; below 0 is padding.

    On one axis a position is also the order of its token; on several axes the order is that of the tensor.
    """
    if positions.dim() == 2:
        return Positions(positions.clamp(min=0)[..., None], positions.clamp(min=-1), unit_step=True)
    order = torch.arange(positions.shape[1], device=positions.device) + first
    return Positions(positions.clamp(min=0), torch.where(positions[..., 0] < 0, -1, order))


class Whole(nn.Module):
    """A model as one pass over whole sequences: ids and positions to logits."""

    def __init__(self, model: nn.Module, horizon: bool) -> None:
        super().__init__()
        self.model, self.horizon = model, horizon

    def forward(self, ids: Tensor, positions: Tensor, *horizon: Tensor) -> Tensor:
        return self.model(ids, positions=positions_of(positions).with_horizon(horizon[0] if self.horizon else None))


class Translation(nn.Module):
    """An encoder-decoder as one pass over a source and the target so far."""

    def __init__(self, model: EncoderDecoder, horizon: bool) -> None:
        super().__init__()
        self.model, self.horizon = model, horizon

    def forward(
        self, source: Tensor, source_positions: Tensor, ids: Tensor, positions: Tensor, *horizon: Tensor
    ) -> Tensor:
        horizon_value = horizon[0] if self.horizon else None
        at, source_at = (positions_of(coords).with_horizon(horizon_value) for coords in (positions, source_positions))
        return self.model(source, ids, positions=at, source_positions=source_at)


class Step(nn.Module):
    """A decoder as a step that continues from a cache, which may be empty.

    memo  for each layer the names of its encoding's facts beside keys and values
    """

    def __init__(self, model: Decoder, memo: Sequence[Sequence[str]], horizon: bool) -> None:
        super().__init__()
        self.model, self.memo, self.horizon = model, memo, horizon

    def forward(self, ids: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        horizon_value, (past_positions, *past) = (rest[0], rest[1:]) if self.horizon else (None, rest)
        cache, past_at = self.model.cache(), positions_of(past_positions)
        facts = iter(past)
        for layer, names in zip(cache.layers, self.memo, strict=True):
            k, v = next(facts), next(facts)
            layer.take_in(Keys(k, v, past_at, {name: next(facts) for name in names}))
        at = positions_of(positions, past_positions.shape[1]).with_horizon(horizon_value)
        logits = self.model(ids, positions=at, cache=cache)
        return logits, torch.cat((past_positions, positions), 1), *cache_tensors(cache).values()


def cache_tensors(cache: Cache) -> dict[str, Tensor]:
    """Return the tensors of a cache by name, layer by layer: keys, values, and the facts of encodings."""
    tensors = {}
    for number, layer in enumerate(cache.layers):
        assert layer.keys is not None
        facts = {"key": layer.keys.k, "value": layer.keys.v, **layer.keys.memo}
        tensors |= {f"{number}.{name}": fact for name, fact in facts.items()}
    return tensors


def graph_of(model: nn.Module, *, cached: bool | None = None) -> Graph:
    """Return the graph of a model. A decoder's has a cache, unless `cached` is False; others are the whole pass.

    Raises ValueError for a cache of a model without one, for a model with another signature, and what the model raises
    for positions that are known only as tensors.
    """
    if "positions" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"a {type(model).__name__} is not called as model(ids, positions=...); wrap it in a module that is, and "
            f"export a model of transformers with optimum-onnx, as docs/guides/export.md shows"
        )
    if cached and not isinstance(model, Decoder):
        raise ValueError(f"a cache belongs to a decoder, and a {type(model).__name__} has none; leave it out")
    if away := {tensor.device.type for tensor in model.parameters()} - {"cpu"}:
        raise ValueError(f"a model is exported from the CPU, and this one is on {away.pop()}; give model.cpu()")
    axes = max([1, *(encoding.axes for encoding in encodings_of(model))])
    make = step_of if isinstance(model, Decoder) and cached is not False else whole_of
    try:
        return make(cast(Any, model), axes, False)
    except ValueError as first_error:
        # A model that needs a declared horizon raises without one.
        try:
            return make(cast(Any, model), axes, True)
        except ValueError:
            raise first_error from None


def step_of(model: Decoder, axes: int, horizon: bool) -> Graph:
    batch, tokens, past = EXAMPLE[BATCH], EXAMPLE[TOKENS], EXAMPLE[PAST]
    cache, places = model.cache(), example_positions(batch, past + tokens, axes).split((past, tokens), 1)
    past_positions, positions = (place.contiguous() for place in places)
    horizons = {"horizon": torch.full((batch,), past + tokens)} if horizon else {}
    with torch.no_grad():
        at = positions_of(past_positions).with_horizon(horizons.get("horizon"))
        model(torch.zeros(batch, past, dtype=torch.long), positions=at, cache=cache)
    past_tensors = cache_tensors(cache)
    inputs = {
        "ids": torch.zeros(batch, tokens, dtype=torch.long),
        "positions": positions,
        **horizons,
        "past_positions": past_positions,
        **{f"past.{name}": fact for name, fact in past_tensors.items()},
    }
    free = {name: {0: BATCH, 2: PAST} for name in inputs}
    free |= {name: {0: BATCH, 1: TOKENS} for name in ("ids", "positions")} | {name: {0: BATCH} for name in horizons}
    free |= {"past_positions": {0: BATCH, 1: PAST}}
    memo = [list(layer.keys.memo) if layer.keys is not None else [] for layer in cache.layers]
    outputs = ["logits", "present_positions", *(f"present.{name}" for name in past_tensors)]
    return Graph("decoder", Step(model, memo, horizon), inputs, free, outputs)


def whole_of(model: nn.Module, axes: int, horizon: bool) -> Graph:
    batch, sizes = EXAMPLE[BATCH], {"ids": TOKENS}
    kind, module = "whole", Whole(model, horizon)
    if isinstance(model, EncoderDecoder):
        kind, module, sizes = "translation", Translation(model, horizon), {"source": SOURCE, "ids": TOKENS}
    inputs, free = {}, {}
    for name, size in sizes.items():
        where = "positions" if name == "ids" else f"{name}_positions"
        inputs[name] = torch.zeros(batch, EXAMPLE[size], dtype=torch.long)
        inputs[where] = example_positions(batch, EXAMPLE[size], axes)
        free |= {name: {0: BATCH, 1: size}, where: {0: BATCH, 1: size}}
    if horizon:
        inputs["horizon"], free["horizon"] = torch.full((batch,), EXAMPLE[SOURCE]), {0: BATCH}
    with torch.no_grad():
        logits = module(*inputs.values())
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"an exported model gives one tensor, its logits, and a {type(model).__name__} gives a "
            f"{type(logits).__name__}; wrap it in a module that returns the logits alone"
        )
    return Graph(kind, module, inputs, free, ["logits"])


def example_positions(batch: int, tokens: int, axes: int) -> Tensor:
    """Return positions [B, T] counted from 0. Several axes get the first cells of a grid, [B, T, A]."""
    count, side = torch.arange(tokens), 1
    if axes == 1:
        return count.repeat(batch, 1)
    while side**axes < tokens:
        side += 1
    return torch.stack([count // side**axis % side for axis in reversed(range(axes))], -1).repeat(batch, 1, 1)


def encodings_of(model: nn.Module) -> list[Encoding]:
    """Return the encodings of a model."""
    return [module for module in model.modules() if isinstance(module, Encoding)]
