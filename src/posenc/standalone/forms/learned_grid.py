"""Learned positions on a grid: add to each token the trained vector of its cell, as in ViT.

Source: Dosovitskiy et al. 2020, arXiv:2010.11929, sections 3.1 and 3.2. `pos_embed` of a ViT is this table.
Where it goes wrong: it knows one resolution; for another, resample the cells (bicubic; with and without antialias
differ) and fine-tune. Exchanged height and width pass every check on a square grid.
"""

import math

import torch
from torch import Tensor, nn

GRID = (14, 14)  # cells of each axis
PREFIX = 0  # tokens outside the grid, such as [CLS]; they have the first rows, and k stands at -(k + 1) on every axis
STD = 0.02  # of the initial vectors
OVERRUN = "error"


class LearnedGridEncoding(nn.Module):
    """x = LearnedGridEncoding(d_model)(x, position_ids), for x [.., seq_len, d_model], ids [.., seq_len, axes]."""

    def __init__(self, d_model: int, max_seq_len: int = 14) -> None:
        super().__init__()
        if GRID is None:
            self.grid = (max_seq_len, max_seq_len)  # cells of each axis
        else:
            self.grid = GRID
        self.table = nn.Parameter(STD * torch.randn(PREFIX + math.prod(self.grid), d_model))

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        cell = torch.zeros_like(position_ids[..., 0])
        inside = torch.ones_like(cell, dtype=torch.bool)
        for ids, size in zip(position_ids.unbind(-1), self.grid, strict=True):
            if OVERRUN == "clamp":
                cell = cell * size + ids.clamp(max=size - 1)
                inside = inside & (ids >= 0)
            else:
                cell = cell * size + ids
                inside = inside & (ids >= 0) & (ids < size)
        if PREFIX:
            token = -1 - position_ids.amax(-1)  # row of a token outside the grid, below 0 for any other place
            rows = torch.where(inside, cell + PREFIX, torch.where(token < PREFIX, token, -1))
        else:
            rows = torch.where(inside, cell, -1)  # -1 raises an error
        return x + nn.functional.embedding(rows, self.table).to(x.dtype).expand_as(x)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 3, 16)
    if GRID is None:
        learned = LearnedGridEncoding(16, max_seq_len=64).double()
    else:
        learned = LearnedGridEncoding(16).double()
    for weight in learned.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    ids = torch.tensor([2, 7, 40])
    ids = torch.stack([(ids // n).clamp(max=size - 1) for n, size in enumerate(learned.grid, 1)], dim=-1)
    torch.testing.assert_close(learned(x, ids)[0, 2], torch.tensor(EXPECTED, dtype=torch.float64))
