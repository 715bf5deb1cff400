"""What becomes of a model as a graph: tensors in, tensors out, and nothing that ties it to a length.

Positions are an input, and no graph counts tokens by itself: so a step behind a cache is the same computation as the
whole sequence, whatever the lengths of both.
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
"""The sizes that are free in a graph."""

EXAMPLE = {BATCH: 2, TOKENS: 4, PAST: 3, SOURCE: 5}
"""The sizes that a graph is written down with: none is 0 or 1, and no two are alike: torch would make a rule of it."""


@dataclass(frozen=True)
class Graph:
    """A module that takes and gives tensors alone, and the names of both.

    kind     decoder, whole or translation: what is asked how, as the guide tells it
    module   what is written down, around the model
    inputs   name -> an example, in the order in which the module takes them
    free     name -> axis -> which of the free sizes it has
    outputs  their names, in order
    """

    kind: str
    module: "Whole | Translation | Step"
    inputs: Mapping[str, Tensor]
    free: Mapping[str, Mapping[int, str]]
    outputs: Sequence[str]

    @property
    def axes(self) -> int:
        """How many coordinates a position has."""
        positions = self.inputs["positions"]
        return 1 if positions.dim() == 2 else positions.shape[2]

    def answer(self, ids: Tensor, positions: Tensor, source: Tensor | None = None) -> Tensor:
        """The model itself, asked in its own way: ids [B, T], positions as in `inputs` (and a source [B, S]) -> logits.

        It does not go through the forward pass of `module`, which it judges.
        """
        declared = ids.shape[1] if self.module.horizon else None
        counted = Positions.count(ids.shape[1]) if positions.dim() == 2 else Positions.of(positions)
        at = counted.with_horizon(declared)
        if source is None:
            return self.module.model(ids, positions=at)
        of_source = Positions.count(source.shape[1]).with_horizon(declared)
        return self.module.model(source, ids, positions=at, source_positions=of_source)


def placed(positions: Tensor, first: int = 0) -> Positions:
    """The positions [B, T] or [B, T, A] of a graph as Positions; below 0 is padding.

    On one axis a position says both where a token is and when it came; tokens on several axes come as they stand,
    behind the first ones.
    """
    if positions.dim() == 2:
        return Positions(positions.clamp(min=0)[..., None], positions.clamp(min=-1), unit_step=True)
    order = torch.arange(positions.shape[1], device=positions.device) + first
    return Positions(positions.clamp(min=0), torch.where(positions[..., 0] < 0, -1, order))


class Whole(nn.Module):
    """A model that is asked once: ids and where they are, to what it says of each."""

    def __init__(self, model: nn.Module, horizon: bool) -> None:
        super().__init__()
        self.model, self.horizon = model, horizon

    def forward(self, ids: Tensor, positions: Tensor, *horizon: Tensor) -> Tensor:
        return self.model(ids, positions=placed(positions).with_horizon(horizon[0] if self.horizon else None))


class Translation(nn.Module):
    """An encoder-decoder that is asked once: a source and the target so far."""

    def __init__(self, model: EncoderDecoder, horizon: bool) -> None:
        super().__init__()
        self.model, self.horizon = model, horizon

    def forward(
        self, source: Tensor, source_positions: Tensor, ids: Tensor, positions: Tensor, *horizon: Tensor
    ) -> Tensor:
        declared = horizon[0] if self.horizon else None
        at, source_at = (placed(one).with_horizon(declared) for one in (positions, source_positions))
        return self.model(source, ids, positions=at, source_positions=source_at)


class Step(nn.Module):
    """A decoder that goes on behind what its layers remember, which may be nothing.

    memo  for each layer the names of what its encoding remembers beside keys and values
    """

    def __init__(self, model: Decoder, memo: Sequence[Sequence[str]], horizon: bool) -> None:
        super().__init__()
        self.model, self.memo, self.horizon = model, memo, horizon

    def forward(self, ids: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        declared, (past_positions, *past) = (rest[0], rest[1:]) if self.horizon else (None, rest)
        cache, held = self.model.cache(), placed(past_positions)
        facts = iter(past)
        for layer, names in zip(cache.layers, self.memo, strict=True):
            k, v = next(facts), next(facts)
            layer.take_in(Keys(k, v, held, {name: next(facts) for name in names}))
        at = placed(positions, past_positions.shape[1]).with_horizon(declared)
        logits = self.model(ids, positions=at, cache=cache)
        return logits, torch.cat((past_positions, positions), 1), *remembered(cache).values()


def remembered(cache: Cache) -> dict[str, Tensor]:
    """What the layers of a cache remember, layer by layer, by its name: keys, values, and the facts of encodings."""
    found = {}
    for number, layer in enumerate(cache.layers):
        assert layer.keys is not None
        facts = {"key": layer.keys.k, "value": layer.keys.v, **layer.keys.memo}
        found |= {f"{number}.{name}": fact for name, fact in facts.items()}
    return found


def graph_of(model: nn.Module, *, cached: bool | None = None) -> Graph:
    """The graph of a model: of a decoder one with a cache, unless `cached` is False; of others the whole pass.

    Raises ValueError where a cache is asked for of a model that has none, for a model that is called otherwise, and
    what the model itself raises for positions of which nothing is known but their numbers.
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
    except ValueError as missing:
        # The model says without a declared horizon that something is missing.
        try:
            return make(cast(Any, model), axes, True)
        except ValueError:
            raise missing from None


def step_of(model: Decoder, axes: int, horizon: bool) -> Graph:
    batch, tokens, past = EXAMPLE[BATCH], EXAMPLE[TOKENS], EXAMPLE[PAST]
    cache, places = model.cache(), cells(batch, past + tokens, axes).split((past, tokens), 1)
    before, positions = (place.contiguous() for place in places)
    declared = {"horizon": torch.full((batch,), past + tokens)} if horizon else {}
    with torch.no_grad():
        at = placed(before).with_horizon(declared.get("horizon"))
        model(torch.zeros(batch, past, dtype=torch.long), positions=at, cache=cache)
    held = remembered(cache)
    inputs = {
        "ids": torch.zeros(batch, tokens, dtype=torch.long),
        "positions": positions,
        **declared,
        "past_positions": before,
        **{f"past.{name}": fact for name, fact in held.items()},
    }
    free = {name: {0: BATCH, 2: PAST} for name in inputs}
    free |= {name: {0: BATCH, 1: TOKENS} for name in ("ids", "positions")} | {name: {0: BATCH} for name in declared}
    free |= {"past_positions": {0: BATCH, 1: PAST}}
    memo = [list(layer.keys.memo) if layer.keys is not None else [] for layer in cache.layers]
    outputs = ["logits", "present_positions", *(f"present.{name}" for name in held)]
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
        inputs[where] = cells(batch, EXAMPLE[size], axes)
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


def cells(batch: int, tokens: int, axes: int) -> Tensor:
    """Positions [B, T]: 0, 1, 2, ...; on several axes the first cells of a grid, [B, T, A]."""
    count, side = torch.arange(tokens), 1
    if axes == 1:
        return count.repeat(batch, 1)
    while side**axes < tokens:
        side += 1
    return torch.stack([count // side**axis % side for axis in reversed(range(axes))], -1).repeat(batch, 1, 1)


def encodings_of(model: nn.Module) -> list[Encoding]:
    """The encodings that a model uses."""
    return [module for module in model.modules() if isinstance(module, Encoding)]
