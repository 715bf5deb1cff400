"""Learned tables for the patches of an image: a row for each cell of a grid, behind rows of prefix tokens."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.kinds.calls import Call, parameters
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, NotSaid, Stack, hook, shadow, swap
from posenc.checkpoints.kinds.learned_table import EmbeddedRows, ReadRows, Rows, grid_of, is_table
from posenc.checkpoints.kinds.rotary_module import rounding
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding import Encoding
from posenc.encodings.learned import Learned
from posenc.encodings.learned_grid import LearnedGrid


@dataclass
class GridTable(Kind):
    """A learned table of image patches.

    grid    cells on each axis
    prefix  rows before the cells
    tensor  what the module calls it
    size    the shape of the whole table
    """

    grid: tuple[int, int]
    prefix: int
    tensor: str
    size: tuple[int, ...]

    words = "a learned table of image patches"
    takes = (LearnedGrid, Learned)
    usual = "learned_grid"
    door = "embed"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["GridTable"]:
        for item in stack.pieces("table", "fixed"):
            values, seen = item.values, stack.node.seen
            if values is None or values.dim() < 2 or values.shape[-1] != stack.shape.dim:
                continue
            grid = grid_of(stack, values)
            if grid is not None and not seen.rows.get(item.path) and (is_table(values) or item.path in seen.added):
                path, _, name = item.path.rpartition(".")
                yield cls(stack, path, *grid, name, tuple(values.shape))

    def specs(self) -> list[str]:
        return [spec_of("learned_grid", grid=self.grid, prefix=self.prefix or None)]

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module: Any = model.get_submodule(self.path)
        encoding = self.one(encodings)
        if type(module) is nn.Embedding:
            return [swap(model, self.path, EmbeddedRows(Rows(module.weight, 0, 0, encoding, horizon), module))]
        table, config = getattr(module, self.tensor), self.config_of(module)
        resamples = getattr(module, "interpolate_pos_encoding", None)
        if resamples is None or len(inspect.signature(resamples).parameters) != 3:
            # Not for embeddings, height and width: it adds its table as it is, whatever the image's size, or resamples
            # what it reads.
            rows = Rows(table.flatten(0, -2), 0, 0, encoding, horizon)
            return [shadow(module, self.tensor, ReadRows(rows, module, self.tensor))]
        side, patch = (n if isinstance(n, Sequence) else (n, n) for n in (config.image_size, config.patch_size))
        if self.grid[0] != self.grid[1] or table.dim() != 3:
            raise NotSaid(
                f"{self.path} has a table {list(table.shape)} for a grid of {self.grid[0]} x {self.grid[1]} patches; "
                f"only square grids behind their prefix tokens can be filled"
            )
        rows = ImageRows(module, self.tensor, self.prefix, self.grid[0], tuple(patch))
        sample = torch.empty(1, table.shape[1], table.shape[2], device=table.device, dtype=table.dtype)
        for size in ((side[0], side[1]), (2 * side[0], side[1] + patch[1])) if same else ():
            larger = sample.new_empty(1, self.prefix + (size[0] // patch[0]) * (size[1] // patch[1]), table.shape[2])
            with torch.no_grad():
                theirs, ours = module.interpolate_pos_encoding(larger, *size), rows(larger, *size)
            close = max(1e-5, 2 * rounding(table))
            if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=10 * close, atol=close):
                raise Differs(f"{self.path} resamples its table for {size[0]} x {size[1]} pixels otherwise than we do")
        changes: list[Change] = [shadow(module, "interpolate_pos_encoding", rows)]
        if "interpolate_pos_encoding" in parameters(type(module)):
            changes.append(hook(module, Interpolating((side[0], side[1]), module)))
        return changes

    def config_of(self, module: Any) -> Any:
        """The configuration with the sizes of images and patches."""
        own = getattr(module, "config", None)
        return own if hasattr(own, "patch_size") else self.stack.node.config


class ImageRows:
    """In the place of `interpolate_pos_encoding`: the table of an image's patches, resampled where its size is another.

    module   holds the parameter `name` [1, prefix + cells, dim], whose cells make up a square grid
    patch    height and width of a patch (pixels)
    """

    def __init__(self, module: Any, name: str, prefix: int, grid: int, patch: tuple[int, int]) -> None:
        self.module, self.name, self.prefix, self.grid, self.patch = module, name, prefix, grid, patch

    def __call__(self, embeddings: Tensor, height: int, width: int) -> Tensor:
        table: Tensor = getattr(self.module, self.name)
        size = (height // self.patch[0], width // self.patch[1])
        if size == (self.grid, self.grid):
            return table
        cells = resampling(self.grid, size, table.device) @ table[0, self.prefix :].double()
        return torch.cat((table[:, : self.prefix], cells[None].to(table.dtype)), 1)


def resampling(grid: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """The matrix [cells of `size`, grid * grid] that resamples any square table bicubically, in float64."""
    # What resampling makes of unit vectors is what it does to every table; the table itself keeps its gradient.
    unit = LearnedGrid(grid * grid, grid=(grid, grid), device=device, dtype=torch.float64)
    with torch.no_grad():
        unit.table.copy_(torch.eye(grid * grid))
    return unit.resampled(*size, antialias=False).table.detach()


class Interpolating:
    """Before an image embedding that takes `interpolate_pos_encoding`: its positions always come from ImageRows."""

    def __init__(self, size: tuple[int, int], module: nn.Module) -> None:
        self.size, self.names = size, parameters(type(module))

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = Call(self.names, args, kwargs)
        height, width = call["pixel_values"].shape[-2:]
        if (height, width) != self.size and not call["interpolate_pos_encoding"]:
            raise ValueError(
                f"the learned table is for images of {self.size[0]} x {self.size[1]} pixels, got {height} x {width}; "
                f"resize them, or call the model with interpolate_pos_encoding=True"
            )
        call["interpolate_pos_encoding"] = True
        return call.changed
