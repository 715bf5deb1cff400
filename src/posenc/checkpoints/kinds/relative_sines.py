"""Sines of distances, which every layer projects in its own way: Transformer-XL in speech encoders."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.calls import parameters
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, NotSaid, Stack, swap
from posenc.checkpoints.kinds.rotary_module import rounding
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding import Encoding
from posenc.encodings.transformer_xl import LAYOUTS, TransformerXL


@dataclass
class RelativeSines(Kind):
    """A module that gives T tokens the sines of the distances T - 1, ..., 1 - T; what projects them stays the model's.

    spec   the catalogue's entry with these sines
    alone  whether they are all that the module gives out
    """

    spec: str
    alone: bool

    words = "a module of sines of distances"
    takes = (TransformerXL,)
    usual = "transformer_xl"
    door = "bias"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["RelativeSines"]:
        for path, given in stack.node.seen.made.items():
            specs = [spec for sines in given if (spec := spec_of_sines(sines, stack))] if stack.has(path) else []
            if specs:
                stack.node.claimed |= {one.path for one in stack.pieces("frequencies", "fixed") if of(path, one.path)}
                stack.node.claimed |= {one.path for one in stack.pieces("table") if projects(one.values, stack)}
                yield cls(stack, path, specs[0], len(given) == 1)

    def specs(self) -> list[str]:
        return [self.spec] * self.stack.layers

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module, encoding = model.get_submodule(self.path), self.one(encodings)
        if not self.alone or parameters(type(module)) != ("hidden_states",):
            raise NotSaid(f"{self.path} gives more than the sines of distances, and stays as it is")
        if encoding.dim != self.stack.shape.dim:
            raise ValueError(f"{self.path} has {self.stack.shape.dim} sines and cosines, and {encoding} {encoding.dim}")
        held = next((buffer for buffer in module.buffers() if buffer.is_floating_point()), torch.zeros(0))
        # A copy, because some keep the sines of the longest sound.
        theirs = copy.deepcopy(module)(torch.zeros(2, 1024, encoding.dim, device=held.device)).detach()
        ours = sines_of(encoding, 1024, torch.float64, held.device)
        far = float((theirs - ours).abs().max()) if theirs.shape[-2:] == ours.shape else math.inf
        # Angles in float32 are off by parts of the distance.
        if same and not far <= 1e-3 + 4 * rounding(held):
            raise Differs(f"{self.path} and {encoding} differ: sines of distances below 1,024 by up to {far:.3g}")
        return [swap(model, self.path, SinesOf(encoding, len(theirs) > 1))]


class SinesOf(nn.Module):
    """In the place of a module of sines of distances: states [B, T, dim] -> [B or 1, 2 T - 1, dim]."""

    def __init__(self, encoding: TransformerXL, each: bool) -> None:
        super().__init__()
        # What an encoding trains is in the model already: its layers project the sines.
        self.__dict__["encoding"], self.each = encoding, each

    @torch.no_grad()
    def forward(self, hidden_states: Tensor) -> Tensor:
        sines = sines_of(self.encoding, hidden_states.shape[1], hidden_states.dtype, hidden_states.device)
        return sines.expand(len(hidden_states) if self.each else 1, -1, -1)

    def extra_repr(self) -> str:
        return repr(self.encoding)


def sines_of(encoding: Any, tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """R [2 tokens - 1, dim] of the distances tokens - 1, ..., 1 - tokens, as an encoding lays them out."""
    distances = torch.arange(tokens - 1, -tokens, -1, device=device)
    sines, cosines = encoding.waves(distances, dtype, device)
    if encoding.layout == "interleaved":
        return torch.stack((sines, cosines), -1).flatten(-2)
    return torch.cat((sines, cosines), -1)


def spec_of_sines(given: Tensor, stack: Stack) -> str | None:
    """The spec whose sines of distances a module gave out; None where they are none."""
    count, wide = given.shape[-2:] if given.dim() == 3 else (0, 0)
    if count < 3 or count % 2 == 0 or wide != stack.shape.dim or wide % 2 or given.is_meta:
        return None
    for layout in LAYOUTS:
        spec = spec_of("transformer_xl", layout=None if layout == LAYOUTS[0] else layout)
        expected = sines_of(build(spec, stack.shape), count // 2 + 1, torch.float32, given.device)
        if torch.allclose(given[0].float(), expected, atol=1e-3):
            return spec
    return None


def makes_sines(stack: Stack, path: str) -> bool:
    """Whether the module that holds a tensor gave out sines of distances."""
    return any(spec_of_sines(given, stack) for given in stack.node.seen.made.get(path.rpartition(".")[0], ()))


def of(path: str, tensor: str) -> bool:
    return tensor.rpartition(".")[0] == path


def projects(values: Tensor | None, stack: Stack) -> bool:
    """Whether a tensor projects sines for all heads, or is a vector for each head that they are compared with."""
    shape, size = stack.shape, () if values is None else tuple(values.shape)
    width = shape.heads * shape.head_dim
    return size in ((width, shape.dim), (shape.dim, width), (width,), (shape.heads, shape.head_dim))
