"""Encodings for some of a model's heads: rebuilt for fewer heads, and compared in numbers with the whole."""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc import kernels
from posenc.encoding.base import Compose, Encoding, constructor_arguments
from posenc.encoding.chosen_heads import OnHeads
from posenc.encoding.keys import Keys
from posenc.model.seeding import local_seed
from posenc.tokens import masks
from posenc.tokens.positions import Positions

TRIAL_TOKENS = 4
"""Number of tokens in a comparison."""

TOLERANCE = 1e-9
"""Largest difference of the outputs of some heads from those among all, in float64."""


class BiasRows(Encoding):
    """A bias by distance on some of its heads: it returns their rows."""

    def __init__(self, encoding: Encoding, heads: Sequence[int]) -> None:
        super().__init__()
        self.encoding, self.heads = encoding, tuple(heads)
        self.axes, self.per_layer = encoding.axes, encoding.per_layer

    def by_distance(self, delta: Tensor) -> Tensor | None:
        values = self.encoding.by_distance(delta)
        assert values is not None
        return values[list(self.heads)]

    def __repr__(self) -> str:
        return f"{self.encoding} of heads {self.heads}"

    __str__ = __repr__


@dataclass(frozen=True)
class ParameterPart:
    """The place of a parameter of some heads in the whole parameter.

    axis         the axis of the heads, each with as many entries
    heads        the heads of the part
    total_heads  number of all heads
    whole        the parameter of all heads
    """

    axis: int
    heads: tuple[int, ...]
    total_heads: int
    whole: nn.Parameter = field(repr=False)


@dataclass
class HeadSubset:
    """A factory of encodings for some of a model's heads.

    heads        the query heads
    total_heads  number of query heads of the model
    kv_heads     number of key heads of the model
    head_dim     width of one head (channels)
    dim          width of the model (channels)
    parts        new parameter -> its place in the whole one
    cache        whole encoding -> encoding of these heads
    """

    heads: tuple[int, ...]
    total_heads: int
    kv_heads: int
    head_dim: int
    dim: int
    parts: dict[nn.Parameter, ParameterPart] = field(default_factory=dict)
    cache: dict[Encoding, Encoding] = field(default_factory=dict)

    def __call__(self, encoding: Encoding) -> Encoding:
        """Return the encoding for these heads; the same object if it does not depend on heads.

        Raises ValueError, naming it, for an encoding that gives some heads alone other numbers.
        """
        if encoding not in self.cache:
            self.cache[encoding] = self.checked_encoding(encoding)
        return self.cache[encoding]

    def checked_encoding(self, encoding: Encoding) -> Encoding:
        if isinstance(encoding, Compose):
            return Compose(*map(self, encoding.parts))
        if encoding.doors <= {"embed"}:
            return encoding
        if "embed" in encoding.doors:
            raise ValueError(
                f"{encoding} both adds to embeddings, which is the same on all ranks, and enters attention, where each "
                f"rank has heads of its own; use two encodings"
            )
        # Compare copies with random parameters, so that no two heads are equal by chance.
        trial = copy.deepcopy(encoding).to("cpu", torch.float64)
        with local_seed(0), torch.no_grad():
            for parameter in trial.parameters():
                parameter += torch.rand_like(parameter)
        shares = [range(start, start + len(self.heads)) for start in range(0, self.total_heads, len(self.heads))]
        of_all_ranks = [replace(self, heads=tuple(heads), parts={}, cache={}) for heads in shares]
        for build in (HeadSubset.rebuilt_encoding, HeadSubset.rows):
            # Every rank tries the heads of all ranks, so that all ranks decide alike.
            if all(head_subset.is_same(trial, build(head_subset, trial)) for head_subset in of_all_ranks):
                result = build(self, encoding)
                assert result is not None
                return result
        raise ValueError(
            f"{encoding} is not, for the heads {self.heads} of {self.total_heads} alone, what it is among all of them, "
            f"so it cannot be cut by heads; keep all heads on every rank, or cut the sequence with shard_sequence"
        )

    def rebuilt_encoding(self, encoding: Encoding) -> Encoding | None:
        """Return the encoding built for fewer heads, with its part of each parameter. It is None if that fails."""
        if isinstance(encoding, OnHeads):
            return self.on_remaining_heads(encoding)
        arguments = constructor_arguments(encoding)
        changes: dict[str, Any] = {}
        if "encoding" in arguments and (inner := self(arguments["encoding"])) is not arguments["encoding"]:
            changes["encoding"] = inner
        if arguments.get("heads") is not None:
            changes["heads"] = len(self.heads)
        if not changes:
            return encoding
        try:
            part_encoding = type(encoding)(**arguments | changes)
        except ValueError:
            return None
        part_encoding.train(encoding.training)
        for name, parameter in list(part_encoding.named_parameters()):
            if "encoding" in changes and name.startswith("encoding."):
                continue
            whole = encoding.get_parameter(name)
            home, _, last = name.rpartition(".")
            part = self.part(parameter, whole)
            if part is None:
                return None
            part_encoding.get_submodule(home).register_parameter(last, part)
        return part_encoding

    def part(self, target: Tensor, whole: nn.Parameter) -> nn.Parameter | None:
        """Return the part of a parameter in the shape of `target`; the whole if all heads share it."""
        if target.shape == whole.shape:
            return whole
        if target.dim() != whole.dim():
            return None
        axes = [axis for axis in range(target.dim()) if target.shape[axis] != whole.shape[axis]]
        if len(axes) != 1 or target.shape[axes[0]] * self.total_heads != whole.shape[axes[0]] * len(self.heads):
            return None
        return self.cut(whole, axes[0], self.heads, self.total_heads)

    def cut(self, whole: nn.Parameter, axis: int, heads: tuple[int, ...], total_heads: int) -> nn.Parameter:
        """Return the part of a parameter for some heads, and note it in `parts`."""
        index = torch.tensor(heads, device=whole.device)
        values = whole.detach().unflatten(axis, (total_heads, -1)).index_select(axis, index)
        parameter = nn.Parameter(values.flatten(axis, axis + 1), requires_grad=whole.requires_grad)
        self.parts[parameter] = ParameterPart(axis, heads, total_heads, whole)
        return parameter

    def on_remaining_heads(self, encoding: OnHeads) -> Encoding | None:
        """Return an encoding on chosen heads, reduced to this rank's heads."""
        positions = [self.heads.index(head) for head in encoding.heads if head in self.heads]
        inner = encoding.encoding
        if "heads" in inspect.signature(type(inner).__init__).parameters:
            return None
        if not positions:
            # Parameters must exist on every rank, so that state dicts have one form.
            return None if any(True for _ in inner.parameters()) else Encoding()
        return OnHeads(inner, positions, len(self.heads))

    def rows(self, encoding: Encoding) -> Encoding | None:
        """Return the rows of a bias by distance; None for any other encoding."""
        return BiasRows(encoding, self.heads) if encoding.doors == {"by_distance"} else None

    def is_same(self, whole: Encoding, partial: Encoding | None) -> bool:
        """Whether these heads attend with the same numbers under the partial encoding as under the whole."""
        if partial is None:
            return False
        group = self.total_heads // self.kv_heads
        keys = sorted({head // group for head in self.heads})
        axes = max(1, whole.axes)
        steps = torch.arange(TRIAL_TOKENS)
        coords = torch.stack([steps * (2 * axis + 1) % TRIAL_TOKENS for axis in range(axes)], -1)[None]
        at = Positions(coords, steps[None]).with_horizon(TRIAL_TOKENS)
        with local_seed(1):
            q, k, v = (
                torch.randn(2, heads, TRIAL_TOKENS, self.head_dim, dtype=torch.float64)
                for heads in (self.total_heads, self.kv_heads, self.kv_heads)
            )
            x = torch.randn(2, TRIAL_TOKENS, self.dim, dtype=torch.float64)
        expected = attend_with(whole, x, q, k, v, at)[:, list(self.heads)]
        try:
            actual = attend_with(partial, x, q[:, list(self.heads)], k[:, keys], v[:, keys], at)
        except ValueError:
            return False
        return actual.shape == expected.shape and bool(((actual - expected).abs() <= TOLERANCE).all())


@torch.no_grad()
def attend_with(encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, at: Positions) -> Tensor:
    """Return attention with an encoding, through all doors but the first."""
    memo = encoding.remember(x, at)
    q, k = encoding.turn_both(q, k, at, at)
    kernel = kernels.bind("reference", encoding, scale=q.shape[-1] ** -0.5)
    return encoding.attend(q, at, Keys(k, v, at, memo, memo), masks.causal(), kernel)[0]
