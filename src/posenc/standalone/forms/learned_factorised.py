"""Axial learned positions: add to each token trained vectors of its row and its column, from one table for each axis.

Source: Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451 (Reformer, released code); Ho et al. 2019, arXiv:1912.12180.
Where it goes wrong: the tables cannot tell what is special about a single cell. Folded over a grid, neighbours of a
text at the end of a row lie in different rows and in far columns.
"""

import math

import torch
from torch import Tensor, nn

GRID = (64, 64)  # rows of each table
WIDTHS = (32, 32)  # channels of each axis
COMBINE = "concatenated"
FOLD = True
STD = 0.02  # of the initial vectors; 1 in Reformer
OVERRUN = "error"


class AxialPositionalEncoding(nn.Module):
    """x = AxialPositionalEncoding(d_model)(x), for x [batch, seq_len, d_model]; without ids tokens count up."""

    def __init__(self, d_model: int, max_seq_len: int = 4096) -> None:
        super().__init__()
        if GRID is not None:
            self.grid = GRID
        elif FOLD:
            columns = math.isqrt(max_seq_len - 1) + 1
            self.grid = (-(-max_seq_len // columns), columns)  # rows of each table
        else:
            self.grid = (max_seq_len, max_seq_len)  # rows of each table
        if COMBINE == "summed":
            widths = [d_model for _ in self.grid]
        elif WIDTHS is None:
            axes = len(self.grid)
            widths = [d_model // axes + (axis < d_model % axes) for axis in range(axes)]  # as even as they can be
        else:
            widths = WIDTHS
        tables = [STD * torch.randn(n, width) for n, width in zip(self.grid, widths, strict=True)]
        self.tables = nn.ParameterList([nn.Parameter(table) for table in tables])

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if not FOLD:
            assert position_ids is not None
        elif position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + x.shape[1], device=x.device)
        if FOLD:
            if OVERRUN == "clamp":
                position_ids = position_ids.clamp(max=math.prod(self.grid) - 1)
            ids = [position_ids]
            for n in self.grid[:0:-1]:  # split off the last axis, which counts fastest
                ids[:1] = [ids[0] // n, ids[0] % n]
        elif OVERRUN == "clamp":
            ids = [ids.clamp(max=n - 1) for ids, n in zip(position_ids.unbind(-1), self.grid, strict=True)]
        else:
            ids = position_ids.unbind(-1)
        vectors = [nn.functional.embedding(rows, table) for rows, table in zip(ids, self.tables, strict=True)]
        if COMBINE == "summed":
            pe = torch.stack(vectors).sum(0)
        else:
            pe = torch.cat(vectors, dim=-1)
        return x + pe.to(x.dtype).expand_as(x)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(3 * len(EXPECTED), dtype=torch.float64).sin().view(1, 3, -1)
    if GRID is not None:
        axial = AxialPositionalEncoding(x.shape[-1]).double()
    else:
        axial = AxialPositionalEncoding(x.shape[-1], max_seq_len=64).double()
    for weight in axial.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    ids = torch.tensor([2, 7, 40])
    if FOLD:
        ids = ids.clamp(max=math.prod(axial.grid) - 1)
    else:
        ids = torch.stack([(ids // n).clamp(max=size - 1) for n, size in enumerate(axial.grid, 1)], dim=-1)
    torch.testing.assert_close(axial(x, ids)[0, 2], torch.tensor(EXPECTED, dtype=torch.float64))
