"""Sines of distances that every layer projects by its own weights: Transformer-XL in speech encoders."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Kind, LayerStack, Mismatch, Undo, replace_module
from posenc.checkpoints.kinds.rotary.module import cast_error
from posenc.checkpoints.vocabulary.specs import new_spec
from posenc.encoding.base import Encoding
from posenc.encodings.content_biases.transformer_xl import LAYOUTS, TransformerXL


@dataclass
class RelativeSines(Kind):
    """A module that returns the sines of T tokens' distances T - 1, ..., 1 - T. Their projections stay the model's.

    spec   the catalogue's entry with these sines
    place  their index among the tensors that the module returns
    """

    spec: str
    place: int

    description = "a module of sines of distances"
    takes = (TransformerXL,)
    default_spec = "transformer_xl"
    door = "bias"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["RelativeSines"]:
        for path, outputs in stack.node.trace.outputs.items():
            specs = [spec_of_sines(output, stack) for output in outputs] if stack.has(path) else []
            for place, spec in enumerate(specs):
                if spec is not None:
                    sines = [t.path for t in stack.pieces("frequencies", "fixed") if t.path.rpartition(".")[0] == path]
                    projections = [t.path for t in stack.pieces("table") if is_projection(t.values, stack)]
                    stack.node.claimed_paths |= {*sines, *projections}
                    yield cls(stack, path, spec, place)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        module, encoding = model.get_submodule(self.path), self.single_encoding(encodings)
        if encoding.dim != self.stack.shape.dim:
            raise ValueError(f"{self.path} has {self.stack.shape.dim} sines and cosines, and {encoding} {encoding.dim}")
        buffer = next((buffer for buffer in module.buffers() if buffer.is_floating_point()), torch.zeros(0))
        # A copy, because some modules cache the sines of the longest sound.
        output = copy.deepcopy(module).eval()(torch.zeros(2, 1024, encoding.dim, device=buffer.device))
        actual = output_tensors(output)[self.place].detach()
        sines = distance_sines(encoding, 1024, torch.float64, buffer.device)
        error = float((actual - sines).abs().max()) if actual.shape[-2:] == sines.shape else math.inf
        # In float32 the error of angles grows with the distance.
        if exact and not error <= 1e-3 + 4 * cast_error(buffer):
            raise Mismatch(f"{self.path} and {encoding} differ: sines of distances below 1,024 by up to {error:.3g}")
        return [replace_module(model, self.path, DistanceSines(encoding, self.place, module))]


class DistanceSines(nn.Module):
    """Replacement of a module of sines of distances, which may return other tensors too.

    place     index of the sines [B or 1, 2 T - 1, dim] among its tensors
    original  the module that it replaces; in training it may drop some sines
    """

    def __init__(self, encoding: TransformerXL, place: int, original: nn.Module) -> None:
        super().__init__()
        # Not a child: the projections of the encoding are in the model's layers already.
        self.__dict__["encoding"], self.place, self.original = encoding, place, original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.original(*args, **kwargs)
        tensors = output_tensors(output)
        old = tensors[self.place]
        sines = distance_sines(self.encoding, old.shape[-2] // 2 + 1, old.dtype, old.device).expand_as(old)
        tensors[self.place] = old if self.training and any(self.original.children()) else sines
        return tuple(tensors) if isinstance(output, tuple) else tensors[0]

    def extra_repr(self) -> str:
        return repr(self.encoding)


def output_tensors(output: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    """Return the tensors of a module's output as a list."""
    return list(output) if isinstance(output, tuple) else [output]


def distance_sines(encoding: Any, tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return R [2 tokens - 1, dim] of the distances tokens - 1, ..., 1 - tokens, in the encoding's layout."""
    distances = torch.arange(tokens - 1, -tokens, -1, device=device)
    sines, cosines = encoding.waves(distances, dtype, device)
    if encoding.layout == "interleaved":
        return torch.stack((sines, cosines), -1).flatten(-2)
    return torch.cat((sines, cosines), -1)


def spec_of_sines(output: Tensor, stack: LayerStack) -> str | None:
    """Return the spec whose sines of distances a module returned; None for other tensors."""
    count, wide = output.shape[-2:] if output.dim() == 3 else (0, 0)
    if count < 3 or count % 2 == 0 or wide != stack.shape.dim or wide % 2 or output.is_meta:
        return None
    for layout in LAYOUTS:
        spec = new_spec("transformer_xl", layout=None if layout == LAYOUTS[0] else layout)
        sines = distance_sines(build(spec, stack.shape), count // 2 + 1, torch.float32, output.device)
        if torch.allclose(output[0].float(), sines, atol=1e-3):
            return spec
    return None


def makes_sines(stack: LayerStack, path: str) -> bool:
    """Whether the module of a tensor returned sines of distances."""
    return any(spec_of_sines(output, stack) for output in stack.node.trace.outputs.get(path.rpartition(".")[0], ()))


def is_projection(values: Tensor | None, stack: LayerStack) -> bool:
    """Whether a tensor projects sines for all heads, or has the vector of each head that they meet."""
    shape, size = stack.shape, () if values is None else tuple(values.shape)
    width = shape.heads * shape.head_dim
    return size in ((width, shape.dim), (shape.dim, width), (width,), (shape.heads, shape.head_dim))
