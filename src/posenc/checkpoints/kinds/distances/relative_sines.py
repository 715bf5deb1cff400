"""Sines of distances, which every layer projects in its own way: Transformer-XL in speech encoders."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, Stack, swap
from posenc.checkpoints.kinds.rotary.module import rounding
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding.base import Encoding
from posenc.encodings.content_biases.transformer_xl import LAYOUTS, TransformerXL


@dataclass
class RelativeSines(Kind):
    """A module that gives T tokens the sines of the distances T - 1, ..., 1 - T; what projects them stays the model's.

    spec   the catalogue's entry with these sines
    place  which of the tensors that the module gives out they are
    """

    spec: str
    place: int

    words = "a module of sines of distances"
    takes = (TransformerXL,)
    usual = "transformer_xl"
    door = "bias"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["RelativeSines"]:
        for path, given in stack.node.seen.made.items():
            told = [spec_of_sines(sines, stack) for sines in given] if stack.has(path) else []
            for place, spec in enumerate(told):
                if spec is not None:
                    held = [one.path for one in stack.pieces("frequencies", "fixed") if of(path, one.path)]
                    projected = [one.path for one in stack.pieces("table") if projects(one.values, stack)]
                    stack.node.claimed |= {*held, *projected}
                    yield cls(stack, path, spec, place)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module, encoding = model.get_submodule(self.path), self.one(encodings)
        if encoding.dim != self.stack.shape.dim:
            raise ValueError(f"{self.path} has {self.stack.shape.dim} sines and cosines, and {encoding} {encoding.dim}")
        held = next((buffer for buffer in module.buffers() if buffer.is_floating_point()), torch.zeros(0))
        # A copy, because some keep the sines of the longest sound.
        given = copy.deepcopy(module).eval()(torch.zeros(2, 1024, encoding.dim, device=held.device))
        theirs = tensors_of(given)[self.place].detach()
        ours = sines_of(encoding, 1024, torch.float64, held.device)
        far = float((theirs - ours).abs().max()) if theirs.shape[-2:] == ours.shape else math.inf
        # Angles in float32 are off by parts of the distance.
        if same and not far <= 1e-3 + 4 * rounding(held):
            raise Differs(f"{self.path} and {encoding} differ: sines of distances below 1,024 by up to {far:.3g}")
        return [swap(model, self.path, SinesOf(encoding, self.place, module))]


class SinesOf(nn.Module):
    """In the place of a module of sines of distances, among whatever else that gives out.

    place     which of its tensors are the sines, [B or 1, 2 T - 1, dim]
    original  what it replaces; in training it may drop some
    """

    def __init__(self, encoding: TransformerXL, place: int, original: nn.Module) -> None:
        super().__init__()
        # What an encoding trains is in the model already: its layers project the sines.
        self.__dict__["encoding"], self.place, self.original = encoding, place, original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = self.original(*args, **kwargs)
        made = tensors_of(given)
        theirs = made[self.place]
        sines = sines_of(self.encoding, theirs.shape[-2] // 2 + 1, theirs.dtype, theirs.device).expand_as(theirs)
        made[self.place] = theirs if self.training and any(self.original.children()) else sines
        return tuple(made) if isinstance(given, tuple) else made[0]

    def extra_repr(self) -> str:
        return repr(self.encoding)


def tensors_of(given: Any) -> list[Tensor]:
    """What a module gives out, one by one."""
    return list(given) if isinstance(given, tuple) else [given]


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
