"""Learned tables for an image's patches: a row for each grid cell, after rows of prefix tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from posenc.checkpoints.kinds.added.learned_table import Rows, is_table, patch_grid, replace_table
from posenc.checkpoints.kinds.kind import Kind, LayerStack, Undo
from posenc.checkpoints.vocabulary.specs import new_spec
from posenc.encoding.base import Encoding
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.learned_grid import LearnedGrid


@dataclass
class GridTable(Kind):
    """A learned table of image patches.

    grid    cells on each axis
    prefix  rows before the cells
    tensor  its name in the module
    size    the shape of the whole table
    """

    grid: tuple[int, ...]
    prefix: int
    tensor: str
    size: tuple[int, ...]

    description = "a learned table of image patches"
    takes = (LearnedGrid, Learned)
    default_spec = "learned_grid"
    door = "embed"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["GridTable"]:
        for item in stack.pieces("table", "fixed"):
            values, trace = item.values, stack.node.trace
            if values is None or values.dim() < 2 or values.shape[-1] != stack.shape.dim:
                continue
            grid = patch_grid(stack, item)
            if grid and not trace.first_rows.get(item.path) and (is_table(values) or item.path in trace.patches):
                path, _, name = item.path.rpartition(".")
                yield cls(stack, path, *grid, name, tuple(values.shape))

    def specs(self) -> list[str]:
        return [new_spec("learned_grid", grid=self.grid, prefix=self.prefix or None)]

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        table, encoding = getattr(model.get_submodule(self.path), self.tensor), self.single_encoding(encodings)
        return [replace_table(self, self.tensor, model, Rows(table.flatten(0, -2), 0, 0, encoding, horizon))]
