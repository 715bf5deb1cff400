"""Modules that hand out cosines and sines for the patches of an image, whatever its size (DINOv3)."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.kinds.calls import parameters
from posenc.checkpoints.kinds.kind import Change, Kind, Stack, swap
from posenc.checkpoints.kinds.rotary_module import Form, compare_tables, facts_of, pairing, rounding
from posenc.encoding import Encoding
from posenc.encodings.image_rotary import ImageRotary, normalised_grid


@dataclass
class ImageRotaryModule(Kind):
    """A module that is given an image and gives the cosines and sines of its patches."""

    words = "a rotary module of images"
    takes = (ImageRotary,)
    usual = "image_rotary"
    door = "turn"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["ImageRotaryModule"]:
        images = any(spec.startswith("image_rotary") for spec, _ in stack.turning or ())
        for key in ("shift", "jitter", "rescale") if images else ():
            stack.node.keys.say(f"pos_embed_{key}", "in training alone: by how much places are drawn")
        for path, module in stack.modules() if images else ():
            if len(stack.node.seen.made.get(path, ())) == 2 and parameters(type(module)) == ("pixel_values",):
                yield cls(stack, path)

    def specs(self) -> list[str]:
        return [spec for spec, _ in self.stack.turning or ()]

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module, encoding = model.get_submodule(self.path), self.one(encodings)
        patch: Any = getattr(module, "config", self.stack.node.config).patch_size
        patch = tuple(patch) if isinstance(patch, Sequence) else (patch, patch)
        device = next(module.buffers()).device
        for rows, columns in ((3, 5), (8, 2)):
            image = torch.zeros(1, 1, rows * patch[0], columns * patch[1], device=device)
            cos, sin = copy.deepcopy(module).eval()(image)
            form = Form(pairing(cos, sin), follows=True)
            first = (table.chunk(2, -1)[0] if form.pairs == "half" else table[..., ::2] for table in (cos, sin))
            rounded = rounding(next(module.buffers())), 0.0
            coords = normalised_grid(rows, columns, device=device).coords
            compare_tables(self.path, encoding, tuple(first), coords, None, same=same, rounded=rounded)
        return [swap(model, self.path, ImageRotaryTable(encoding, form, patch, module))]


class ImageRotaryTable(nn.Module):
    """In the place of a rotary module of images: pixels [B, C, height, width] -> cosines and sines of the patches.

    patch     height and width of a patch (pixels)
    original  what it replaces: in training that draws where the patches stand
    """

    def __init__(self, encoding: ImageRotary, form: Form, patch: tuple[int, ...], original: nn.Module) -> None:
        super().__init__()
        self.encoding, self.form, self.patch, self.original = encoding, form, patch, original
        self.__dict__ |= {name: value for name, value in facts_of(original).items() if name not in self.__dict__}

    @torch.no_grad()
    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            return self.original(pixel_values)
        rows, columns = (size // one for size, one in zip(pixel_values.shape[-2:], self.patch, strict=True))
        at = normalised_grid(rows, columns, device=pixel_values.device)
        cos, sin = self.encoding.table(at, pixel_values.dtype, pixel_values.device)[:, 0, 0].unbind(0)
        return self.form.laid_out(cos), self.form.laid_out(sin)

    def extra_repr(self) -> str:
        return repr(self.encoding)
