"""Learned tables for the patches of an image: a row for each cell of a grid, behind rows of prefix tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from posenc.checkpoints.kinds.added.learned_table import Rows, grid_of, is_table, put
from posenc.checkpoints.kinds.kind import Change, Kind, Stack
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding.base import Encoding
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.learned_grid import LearnedGrid


@dataclass
class GridTable(Kind):
    """A learned table of image patches.

    grid    cells on each axis
    prefix  rows before the cells
    tensor  what the module calls it
    size    the shape of the whole table
    """

    grid: tuple[int, ...]
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
            grid = grid_of(stack, item)
            if grid is not None and not seen.rows.get(item.path) and (is_table(values) or item.path in seen.patches):
                path, _, name = item.path.rpartition(".")
                yield cls(stack, path, *grid, name, tuple(values.shape))

    def specs(self) -> list[str]:
        return [spec_of("learned_grid", grid=self.grid, prefix=self.prefix or None)]

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        table, encoding = getattr(model.get_submodule(self.path), self.tensor), self.one(encodings)
        return [put(self, model, Rows(table.flatten(0, -2), 0, 0, encoding, horizon))]
