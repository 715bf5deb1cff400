"""Modules without tensors that compute sines of positions: of tokens in a row, or of grid cells."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.calls import HookedCall, name_among, parameter_names
from posenc.checkpoints.kinds.kind import Kind, LayerStack, Mismatch, Undo, replace_module
from posenc.checkpoints.kinds.rotary.module import at_coordinates
from posenc.checkpoints.vocabulary.specs import new_spec
from posenc.encoding.base import Encoding, Shape, spec_options
from posenc.encodings.added.sinusoidal import LAYOUTS, Sinusoidal

FULL_TURN = 2 * torch.pi
"""The coordinate of the last row and column where sines are independent of the image size (radians)."""


@dataclass(frozen=True)
class Placement:
    """The coordinates that a module without tensors gives tokens.

    form           "row": tokens count up from those in a cache; "cells": height and width; "mask": cells counted on
                   each axis by a padding mask
    first          the coordinate of the first token
    is_normalised  whether the last of each axis is at 2 pi
    """

    form: str
    first: float = 0.0
    is_normalised: bool = False

    def coordinates(self, call: HookedCall) -> tuple[Tensor, torch.dtype]:
        """Return coordinates [B, T, A], or by a mask [B, H, W, A], and the sines' dtype."""
        if self.form == "row":
            embeds = call["inputs_embeds"]
            start, ids = call["cache_length"] or 0, call["position_ids"]
            ids_or_count = torch.arange(start, start + embeds.shape[1], device=embeds.device) if ids is None else ids
            return ids_or_count.reshape(-1, embeds.shape[1], 1) + self.first, embeds.dtype
        if self.form == "cells":
            axes = [torch.arange(int(call[name]), device=call["device"]) for name in ("height", "width")]
            return torch.cartesian_prod(*axes)[None] + self.first, call["dtype"]
        if "shape" in call.names:
            (B, _, *size), dtype, mask = call["shape"], call["dtype"], call["mask"]
            mask = torch.ones(B, *size, device=call["device"]) if mask is None else mask
        else:
            dtype, mask = torch.float32, call["pixel_mask"]
        counts = [mask.double().cumsum(axis) for axis in (1, 2)]
        last = [counts[0][:, -1:], counts[1][:, :, -1:]]
        coords = [count - 1 + self.first for count in counts]
        if self.is_normalised:
            coords = [coord / (largest + 1e-6) * FULL_TURN for coord, largest in zip(coords, last, strict=True)]
        return torch.stack(coords, -1), dtype

    @property
    def text(self) -> str:
        at = {0.0: "0", 1.0: "1", 0.5: "one half"}[self.first]
        noun = "tokens" if self.form == "row" else "rows and columns"
        return f"{noun} are counted from {at}{', and the last is brought to 2 pi' if self.is_normalised else ''}"


def call_form(module: nn.Module) -> str | None:
    """Return the form in which a module takes positions; None for an unknown one."""
    names = set(parameter_names(type(module)))
    if {"inputs_embeds", name_among(names, "cache_length"), "position_ids"} <= names:
        return "row"
    if {"height", "width", "device", "dtype"} == names:
        return "cells"
    return "mask" if {"shape", "device", "dtype", "mask"} == names or {"pixel_values", "pixel_mask"} == names else None


def sample_calls(form: str, module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield calls that show where a module places tokens; images are not square, and one is padded."""
    plain = {"device": torch.device("cpu"), "dtype": torch.float32}
    if form == "row":
        wide = next(n for name in ("embed_dim", "embedding_dim", "dim") if (n := getattr(module, name, None)))
        length = name_among(parameter_names(type(module)), "cache_length")
        yield {"inputs_embeds": torch.zeros(1, 7, wide), length: 2}
    elif form == "cells":
        yield {"height": 3, "width": 5} | plain
    else:
        padded = torch.ones(2, 4, 6)
        padded[1, 3:], padded[1, :, 4:] = 0, 0
        for mask in (torch.ones(1, 5, 3), padded):
            if "pixel_mask" in parameter_names(type(module)):
                yield {"pixel_values": mask[:, None], "pixel_mask": mask.long()}
            else:
                yield {"shape": (len(mask), 8, *mask.shape[1:]), "mask": mask.bool()} | plain


@dataclass
class SineModule(Kind):
    """A module without tensors that computes sines and cosines of positions.

    spec    the sines
    places  where it places tokens
    size    the width of its output
    """

    spec: str
    places: Placement
    size: tuple[int, ...]

    description = "a module that computes sines"
    takes = (Sinusoidal,)
    default_spec = "sinusoidal"
    door = "embed"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["SineModule"]:
        for item in stack.pieces("module"):
            form = call_form(item.owner) if item.path in stack.node.trace.entered_paths else None
            match = None if form is None else match_sines(item.owner, form)
            if match is not None:
                base = spec_options(build(match[0], stack.shape))["base"]
                for key, value in stack.node.keys.entries.items():
                    if re.search(r"pos.*temperature", key) and value == base:
                        stack.node.keys.note(key, f"base {value} of the sines")
                yield cls(stack, item.path, *match)

    @property
    def remarks(self) -> str:
        """A sentence on what the spec does not cover."""
        return f"{self.path}: {self.places.text}; its layers say what this is added to, embeddings or queries and keys"

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        module = model.get_submodule(self.path)
        replacement = ComputedSines(self.single_encoding(encodings), self.places, module)
        for sample in sample_calls(self.places.form, module) if exact else ():
            error = largest_error(module.forward(**sample), replacement(**sample), sample)
            if error > 1e-5:
                raise Mismatch(f"{self.path} and {replacement.encoding} differ by up to {error:.3g}")
        return [replace_module(model, self.path, replacement)]


def largest_error(actual: Tensor, expected: Tensor, sample: dict[str, Any]) -> float:
    """Return the largest difference of two results of a call, without padding."""
    mask = sample.get("mask", sample.get("pixel_mask"))
    error = (actual - expected).abs() if actual.shape == expected.shape else actual.new_full(actual.shape, torch.inf)
    return float((error if mask is None else error.movedim(1, -1)[mask.bool()]).max())


@torch.no_grad()
def match_sines(module: nn.Module, form: str) -> tuple[str, Placement, tuple[int, ...]] | None:
    """Return the spec that computes what a module does, its placement, and its width; None if nothing fits."""
    try:
        calls = [(sample, module.forward(**sample)) for sample in sample_calls(form, module)]
    except Exception:
        # Foreign code, called by the names of its parameters, may raise anything.
        return None
    axes, map_of = (1 if form == "row" else 2), form == "mask"
    wide = calls[0][1].shape[1 if map_of else -1]
    numbers = [n for n in vars(module).values() if isinstance(n, (int, float)) and n > 1]
    bases = dict.fromkeys((10_000, *(n for n in numbers if n not in (wide, wide // axes))))
    places = [Placement(form, *at) for at in itertools.product((0.0, 1.0, 0.5), (False, True) if map_of else (False,))]
    for base, layout, endpoint, at in itertools.product(bases, LAYOUTS, (False, True), places):
        options = {"layout": None if layout == "interleaved" else layout, "endpoint": endpoint or None}
        spec = new_spec(
            "sinusoidal", base=None if base == 10_000 else base, axes=None if axes == 1 else axes, **options
        )
        try:
            replacement = ComputedSines(build(spec, Shape(wide, 1, wide, 1)), at, module)
        except ValueError:
            continue
        if all(largest_error(output, replacement(**sample), sample) < 1e-5 for sample, output in calls):
            return spec, at, (wide,)
    return None


class ComputedSines(nn.Module):
    """Replacement of a module that computes sines of positions, with the same call."""

    def __init__(self, encoding: Encoding, places: Placement, module: nn.Module) -> None:
        super().__init__()
        self.encoding, self.places, self.names = encoding, places, parameter_names(type(module))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = HookedCall(self.names, args, kwargs)
        coords, dtype = self.places.coordinates(call)
        encoding: Any = self.encoding
        rows = encoding.encode(at_coordinates(coords.flatten(1, -2))).to(dtype)
        if self.places.form == "mask":
            return rows.view(*coords.shape[:-1], -1).permute(0, 3, 1, 2)
        return rows.expand(len(call["inputs_embeds"]), -1, -1) if self.places.form == "row" else rows

    def extra_repr(self) -> str:
        return f"{self.encoding}, {self.places.text}"
