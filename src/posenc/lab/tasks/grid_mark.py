"""Say for every cell of a square where the mark lies from there, in two axes."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc.lab.tasks._task import Batch, Task
from posenc.tokens.positions import Positions

CELLS = ".x"
DIRECTIONS = "↖↑↗←x→↙↓↘"
"""The directions of the mark, seen from a cell, row by row; x is the mark's own cell."""


@dataclass(frozen=True, kw_only=True)
class GridMark(Task):
    """Say for every cell of a square where the mark lies from there: .x/.. -> →x/↗↑.

    The task is direction in two axes: for each axis, on which side of a cell the mark lies. The positions are those of
    a grid, for encodings of two axes or of any number; the model sees all cells.

    The length is the side of the square; a person writes its rows with / between them.

    Raises ValueError for a side below 2.
    Source: Heo et al. 2024, arXiv:2403.13298, section 4 (larger squares than trained), here one mark.
    """

    also_called = ("image", "picture", "pixel", "patch", "vision", "grid", "board", "square")
    recipe = MappingProxyType({"train_length": 8, "steps": 1000, "batch": 16, "rate": 3e-3, "cool_down": 100})
    shortest = 2
    reads = "encoder"
    axes = 2
    beyond = (1.5, 2)
    letters = CELLS + DIRECTIONS.replace("x", "")

    @property
    def vocab(self) -> int:
        return len(self.letters)

    def tokens(self, length: int) -> int:
        return length**2

    def chance(self, length: int) -> float:
        return length**-2

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if length < self.shortest:
            raise ValueError(f"grid_mark needs a cell beside the mark: sides of 2 or more, got {length}")
        positions = Positions.grid(length, length)
        mark = torch.randint(0, length**2, (rows,), generator=generator)
        ids = torch.zeros(rows, length**2, dtype=torch.long).scatter(1, mark[:, None], 1)
        side = (positions.coords[0][mark][:, None] - positions.coords).sign()  # [B, T, 2], of the mark
        direction = torch.tensor([self.letters.index(arrow) for arrow in DIRECTIONS])
        targets = direction[3 * (side[..., 0] + 1) + side[..., 1] + 1]
        return Batch(ids, targets, torch.ones(length**2, dtype=torch.bool), positions)

    def encode(self, text: str) -> list[int]:
        rows = text.split("/")
        if set(text) - set(CELLS + "/") or any(len(row) != len(rows) for row in rows):
            raise ValueError(f"a prompt for grid_mark is a square of {CELLS} with / between its rows, got {text!r}")
        return [CELLS.index(cell) for row in rows for cell in row]

    def decode(self, ids: list[int]) -> str:
        side, cells = round(len(ids) ** 0.5), "".join(self.letters[i] for i in ids)
        # Cells that make no square are one row.
        rows = [cells[i : i + side] for i in range(0, len(cells), side)] if side**2 == len(ids) else [cells]
        return "/".join(rows)
