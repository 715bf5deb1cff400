"""Modules without tensors that compute sines of positions: of tokens in a row, or of the cells of a grid."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.calls import Call, name_among, parameters
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, Stack, swap
from posenc.checkpoints.kinds.rotary.module import at_coordinates
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding.base import Encoding, Shape, settings_of
from posenc.encodings.added.sinusoidal import LAYOUTS, Sinusoidal

WHOLE = 2 * torch.pi
"""What the last row and column are brought to, where the size of an image is to make no difference (radians)."""


@dataclass(frozen=True)
class Places:
    """Where a module without tensors places tokens.

    form    "row": tokens that count up from those in a cache; "cells": height and width; "mask": cells counted on each
            axis by a padding mask
    first   the coordinate of the first token
    normal  whether the last of each axis is brought to 2 pi
    """

    form: str
    first: float = 0.0
    normal: bool = False

    def of(self, call: Call) -> tuple[Tensor, torch.dtype]:
        """Coordinates [B, T, A], or [B, H, W, A] by a mask, and the dtype of what comes out."""
        if self.form == "row":
            like = call["inputs_embeds"]
            start, ids = call["cache_length"] or 0, call["position_ids"]
            counted = torch.arange(start, start + like.shape[1], device=like.device) if ids is None else ids
            return counted.reshape(-1, like.shape[1], 1) + self.first, like.dtype
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
        if self.normal:
            coords = [one / (most + 1e-6) * WHOLE for one, most in zip(coords, last, strict=True)]
        return torch.stack(coords, -1), dtype

    @property
    def words(self) -> str:
        at = {0.0: "0", 1.0: "1", 0.5: "one half"}[self.first]
        what = "tokens" if self.form == "row" else "rows and columns"
        return f"{what} are counted from {at}{', and the last is brought to 2 pi' if self.normal else ''}"


def form_of(module: nn.Module) -> str | None:
    """How a module is told of positions; None where it is in no way that is known."""
    names = set(parameters(type(module)))
    if {"inputs_embeds", name_among(names, "cache_length"), "position_ids"} <= names:
        return "row"
    if {"height", "width", "device", "dtype"} == names:
        return "cells"
    return "mask" if {"shape", "device", "dtype", "mask"} == names or {"pixel_values", "pixel_mask"} == names else None


def samples(form: str, module: nn.Module) -> Iterator[dict[str, Any]]:
    """Calls of a module that tell where it places tokens; images are not square, and one is padded."""
    plain = {"device": torch.device("cpu"), "dtype": torch.float32}
    if form == "row":
        wide = next(n for name in ("embed_dim", "embedding_dim", "dim") if (n := getattr(module, name, None)))
        length = name_among(parameters(type(module)), "cache_length")
        yield {"inputs_embeds": torch.zeros(1, 7, wide), length: 2}
    elif form == "cells":
        yield {"height": 3, "width": 5} | plain
    else:
        padded = torch.ones(2, 4, 6)
        padded[1, 3:], padded[1, :, 4:] = 0, 0
        for mask in (torch.ones(1, 5, 3), padded):
            if "pixel_mask" in parameters(type(module)):
                yield {"pixel_values": mask[:, None], "pixel_mask": mask.long()}
            else:
                yield {"shape": (len(mask), 8, *mask.shape[1:]), "mask": mask.bool()} | plain


@dataclass
class SineModule(Kind):
    """A module without tensors that computes sines and cosines of positions.

    spec    the sines
    places  where it places tokens
    size    the width of what it makes
    """

    spec: str
    places: Places
    size: tuple[int, ...]

    words = "a module that computes sines"
    takes = (Sinusoidal,)
    usual = "sinusoidal"
    door = "embed"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["SineModule"]:
        for item in stack.pieces("module"):
            form = form_of(item.owner) if item.path in stack.node.seen.entered else None
            found = None if form is None else sines_of(item.owner, form)
            if found is not None:
                for key, value in stack.node.keys.given.items():
                    if (
                        re.search(r"pos.*temperature", key)
                        and value == settings_of(build(found[0], stack.shape))["base"]
                    ):
                        stack.node.keys.say(key, f"base {value} of the sines")
                yield cls(stack, item.path, *found)

    @property
    def besides(self) -> str:
        """What the spec does not say."""
        return f"{self.path}: {self.places.words}; its layers say what this is added to, embeddings or queries and keys"

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module = model.get_submodule(self.path)
        ours = ComputedSines(self.one(encodings), self.places, module)
        for given in samples(self.places.form, module) if same else ():
            off = apart(module.forward(**given), ours(**given), given)
            if off > 1e-5:
                raise Differs(f"{self.path} and {ours.encoding} differ by up to {off:.3g}")
        return [swap(model, self.path, ours)]


def apart(one: Tensor, other: Tensor, given: dict[str, Any]) -> float:
    """By how much two results of a call differ, padding aside: some divide by how little of it is no padding."""
    mask = given.get("mask", given.get("pixel_mask"))
    off = (one - other).abs() if one.shape == other.shape else one.new_full(one.shape, torch.inf)
    return float((off if mask is None else off.movedim(1, -1)[mask.bool()]).max())


@torch.no_grad()
def sines_of(module: nn.Module, form: str) -> tuple[str, Places, tuple[int, ...]] | None:
    """The spec of what a module computes, where it places tokens, and its width; None where nothing fits."""
    try:
        calls = [(given, module.forward(**given)) for given in samples(form, module)]
    except Exception:
        # Foreign code, called as its parameters are named: whatever it says, it is not understood.
        return None
    axes, map_of = (1 if form == "row" else 2), form == "mask"
    wide = calls[0][1].shape[1 if map_of else -1]
    numbers = [n for n in vars(module).values() if isinstance(n, (int, float)) and n > 1]
    bases = dict.fromkeys((10_000, *(n for n in numbers if n not in (wide, wide // axes))))
    places = [Places(form, *at) for at in itertools.product((0.0, 1.0, 0.5), (False, True) if map_of else (False,))]
    for base, layout, endpoint, at in itertools.product(bases, LAYOUTS, (False, True), places):
        given = {"layout": None if layout == "interleaved" else layout, "endpoint": endpoint or None}
        spec = spec_of("sinusoidal", base=None if base == 10_000 else base, axes=None if axes == 1 else axes, **given)
        try:
            ours = ComputedSines(build(spec, Shape(wide, 1, wide, 1)), at, module)
        except ValueError:
            continue
        if all(apart(theirs, ours(**given), given) < 1e-5 for given, theirs in calls):
            return spec, at, (wide,)
    return None


class ComputedSines(nn.Module):
    """In the place of a module that computes sines of positions, called as it was."""

    def __init__(self, encoding: Any, places: Places, module: nn.Module) -> None:
        super().__init__()
        self.encoding, self.places, self.names = encoding, places, parameters(type(module))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = Call(self.names, args, kwargs)
        coords, dtype = self.places.of(call)
        encoding: Sinusoidal = self.encoding
        rows = encoding.encode(at_coordinates(coords.flatten(1, -2))).to(dtype)
        if self.places.form == "mask":
            return rows.view(*coords.shape[:-1], -1).permute(0, 3, 1, 2)
        return rows.expand(len(call["inputs_embeds"]), -1, -1) if self.places.form == "row" else rows

    def extra_repr(self) -> str:
        return f"{self.encoding}, {self.places.words}"
