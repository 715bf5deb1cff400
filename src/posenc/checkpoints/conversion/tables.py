"""Resize learned tables of positions and of the cells of a grid."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.interpolation import resample, resampling_matrix

INTERPOLATIONS = ("linear", "cubic", "nearest")
MODES = {"linear": "bilinear", "cubic": "bicubic"}


def resampling(old: int, new: int, how: str = "linear", *, align_corners: bool = False) -> Tensor:
    """Return the matrix [new, old], float64, that interpolates `new` rows between `old` ones.

    how            "linear", "cubic" (Keys' kernel, a = -3/4) or "nearest"
    align_corners  as of torch.nn.functional.interpolate. True: the first rows coincide, and the last ones: new row i
                   reads at i (old - 1)/(new - 1). False: rows are the centres of cells that fill the same length: it
                   reads at (i + 1/2) old/new - 1/2, clamped to the table

    Raises ValueError for sizes below 1 and an unknown `how`.

    >>> resampling(3, 5, align_corners=True)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 1.0000, 0.0000],
            [0.0000, 0.5000, 0.5000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    if old < 1 or new < 1:
        raise ValueError(f"a table has 1 row or more, got {old} to resize to {new}")
    if how not in INTERPOLATIONS:
        raise ValueError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got '{how}'")
    if old == new:
        return torch.eye(old, dtype=torch.float64)
    if how == "nearest":
        step = torch.arange(new, dtype=torch.float64)
        place = step * ((old - 1) / max(new - 1, 1)) if align_corners else (step + 0.5) * (old / new) - 0.5
        return F.one_hot((place + 0.5).floor().long().clamp(0, old - 1), old).double()
    return resampling_matrix(old, new, mode=MODES[how], align_corners=align_corners)


def resize_positions(table: Tensor, length: int, how: str = "linear", *, offset: int = 0) -> Tensor:
    """Resize a table of positions [offset + positions, dim] to another number of positions.

    length  the new number of positions; the first and the last one keep their vectors
    how     "linear", "cubic" or "nearest"
    offset  rows before the first position, which stay unchanged: 2 for OPT, BART and RoBERTa

    "linear" gives the rows that learned(overrun="interpolate") reads for a declared horizon. The model gains from new
    positions only after fine-tuning: neighbours are now closer together than in training.

    Raises ValueError for a table without positions, or a length below 1.

    >>> resize_positions(torch.tensor([[9.0], [0.0], [2.0]]), 3, offset=1).flatten()
    tensor([9., 0., 1., 2.])
    """
    positions = table.shape[0] - offset
    if table.dim() != 2 or not 0 <= offset < table.shape[0]:
        raise ValueError(f"expected a table [positions, dim] and an offset in it, got {list(table.shape)}, {offset}")
    matrix = resampling(positions, length, how, align_corners=True)
    return torch.cat((table[:offset], resample(table[offset:], [matrix])))


def resize_grid(
    table: Tensor, old: Sequence[int], new: Sequence[int], how: str = "cubic", *, prefix: int = 0
) -> Tensor:
    """Resize the table of a grid [prefix + cells, dim] to another grid with as many axes.

    old, new  cells on each axis; the number of rows alone does not determine them: 2 x 8 is as many as 4 x 4
    prefix    rows before the cells, of class, distillation or register tokens, which stay unchanged

    A batch axis of 1, as in ViT's [1, prefix + cells, dim], stays. transformers' ViT and DINOv2 resample in the same
    way; `LearnedGrid.resampled` resamples as timm does, with antialias.

    Raises ValueError if the number of rows is not prefix + cells, or the numbers of axes differ.
    """
    rows, cells = table.shape[-2], math.prod(old)
    if len(old) != len(new):
        raise ValueError(f"the new grid must have as many axes as the old one {tuple(old)}, got {tuple(new)}")
    if rows != prefix + cells or (table.dim() == 3 and table.shape[0] != 1) or table.dim() not in (2, 3):
        raise ValueError(
            f"a grid of {' x '.join(map(str, old))} cells and {prefix} prefix rows needs {prefix + cells} rows, got a "
            f"table {list(table.shape)}"
        )
    flat = table.view(rows, -1)
    matrices = [resampling(a, b, how) for a, b in zip(old, new, strict=True)]
    new_table = torch.cat((flat[:prefix], resample(flat[prefix:], matrices)))
    return new_table[None] if table.dim() == 3 else new_table
