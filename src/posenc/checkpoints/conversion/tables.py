"""Learned tables of another size: of positions, of the cells of a grid, of relative distances."""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

INTERPOLATIONS = ("linear", "cubic", "nearest")
MODES = {"linear": "bilinear", "cubic": "bicubic"}


def resampling(old: int, new: int, how: str = "linear", *, aligned: bool = False, antialias: bool = False) -> Tensor:
    """The matrix [new, old], float64, that makes `new` rows of `old` ones: each new row is a mix of old ones.

    how        "linear", "cubic" (Keys' kernel, a = -3/4; -1/2 with antialias) or "nearest"
    aligned    whether the first and the last rows fall together: new row i reads at i (old - 1)/(new - 1). Else rows
               are the middles of cells that fill the same length: it reads at (i + 1/2) old/new - 1/2, held within the
               table. As `align_corners` of torch.nn.functional.interpolate
    antialias  widen the kernel where the table shrinks; not for "nearest", nor together with aligned

    Raises ValueError for sizes below 1, an unknown `how`, and an antialias that would be ignored.

    >>> resampling(3, 5, aligned=True)
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
    if antialias and (aligned or how == "nearest"):
        raise ValueError("antialias goes with linear or cubic, and with rows that are middles of cells (not aligned)")
    if old == new:
        return torch.eye(old, dtype=torch.float64)
    if how == "nearest":
        step = torch.arange(new, dtype=torch.float64)
        place = step * ((old - 1) / max(new - 1, 1)) if aligned else (step + 0.5) * (old / new) - 0.5
        return F.one_hot((place + 0.5).floor().long().clamp(0, old - 1), old).double()
    # What resampling makes of unit vectors is the matrix that resamples everything.
    unit = torch.eye(old, dtype=torch.float64)[None, None]
    return F.interpolate(unit, (new, old), mode=MODES[how], align_corners=aligned, antialias=antialias)[0, 0]


def resample(table: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """A table [prod(old sizes), dim] over a grid, the last axis running fastest, resampled along each axis.

    matrices   [new, old] for each axis, as `resampling` gives them

    In float64, rounded once to the table's dtype.
    """
    sizes = [matrix.shape[1] for matrix in matrices]
    cells = table.double().view(*sizes, table.shape[-1])
    for axis, matrix in enumerate(matrices):
        cells = torch.tensordot(matrix.to(cells.device), cells, dims=([1], [axis])).movedim(0, axis)
    return cells.flatten(0, -2).to(table.dtype)


def resize_positions(
    table: Tensor, length: int, how: str = "linear", *, aligned: bool = True, offset: int = 0
) -> Tensor:
    """A table of positions [offset + positions, dim] for another number of positions.

    length   the new number of positions
    how      "linear" reads between neighbours, "cubic" bends, "nearest" repeats
    aligned  whether the first and the last position keep their vectors; see `resampling`
    offset   rows before the first position, kept as they are: 2 for OPT, BART and RoBERTa

    With "linear", aligned, it is what learned(overrun="interpolate") reads for a declared horizon. The model has to be
    fine-tuned to gain from the new positions: neighbours are now closer together than in training.

    Raises ValueError for a table without positions, or a length below 1.

    >>> resize_positions(torch.tensor([[9.0], [0.0], [2.0]]), 3, offset=1).flatten()
    tensor([9., 0., 1., 2.])
    """
    positions = table.shape[0] - offset
    if table.dim() != 2 or not 0 <= offset < table.shape[0]:
        raise ValueError(
            f"expected a table [positions, dim] and an offset within it, got {list(table.shape)}, {offset}"
        )
    matrix = resampling(positions, length, how, aligned=aligned)
    return torch.cat((table[:offset], resample(table[offset:], [matrix])))


def resize_grid(
    table: Tensor,
    old: Sequence[int],
    new: Sequence[int],
    how: str = "cubic",
    *,
    prefix: int = 0,
    aligned: bool = False,
    antialias: bool = False,
) -> Tensor:
    """A table of the cells of a grid [prefix + cells, dim] for another grid of as many axes.

    old, new   cells on each axis; square or not. Never guessed from the number of rows: 2 x 8 is as many as 4 x 4
    prefix     rows before the cells, of class, distillation or register tokens: kept as they are
    antialias  as timm resamples (with cubic); transformers' ViT and DINOv2 do without

    A batch axis of 1, as in ViT's [1, prefix + cells, dim], stays. `LearnedGrid.resampled` is this with cubic.

    Raises ValueError where the rows are not prefix + cells, or the grids have other numbers of axes.
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
    matrices = [resampling(a, b, how, aligned=aligned, antialias=antialias) for a, b in zip(old, new, strict=True)]
    resized = torch.cat((flat[:prefix], resample(flat[prefix:], matrices)))
    return resized[None] if table.dim() == 3 else resized


def resize_window(
    table: Tensor, old: Sequence[int], new: Sequence[int], how: str = "cubic", *, extra: int = 0
) -> Tensor:
    """A relative table of a window [prod(2 W - 1) + extra, heads] (Swin, BEiT) for another window.

    old, new  sizes of the window on each axis (positions)
    how       "linear", "cubic" or "nearest" between distances that fill the same span; or "geometric" (BEiT): old
              distances are laid out in a geometric progression that reaches as far as the new window does, and read
              linearly between. It keeps short distances as they were; for larger windows only
    extra     rows at the end that are no distances, such as BEiT's three of its class token: kept as they are

    `GridBias.resampled` is this with linear.

    Raises ValueError where rows and windows do not fit together, and for a geometric window that does not grow.
    """
    if len(old) != len(new):
        raise ValueError(f"the new window must have as many axes as the old one {tuple(old)}, got {tuple(new)}")
    sizes = [(2 * a - 1, 2 * b - 1) for a, b in zip(old, new, strict=True)]
    needed = math.prod(a for a, _ in sizes) + extra
    if table.dim() != 2 or table.shape[0] != needed:
        raise ValueError(
            f"a window of {' x '.join(map(str, old))} and {extra} extra rows needs {needed} rows, got a table "
            f"{list(table.shape)}"
        )
    if how == "geometric":
        matrices = [geometric(a, b) for a, b in zip(old, new, strict=True)]
    else:
        matrices = [resampling(a, b, how) for a, b in sizes]
    distances = table.shape[0] - extra
    return torch.cat((resample(table[:distances], matrices), table[distances:]))


def geometric(old: int, new: int) -> Tensor:
    """The matrix [2 new - 1, 2 old - 1] of `resize_window`'s "geometric".

    Old distance n is laid at 1 + q + ... + q^(n-1), with the q for which the last one, n = old - 1, is at new - 1.
    """
    if old == new:
        return torch.eye(2 * old - 1, dtype=torch.float64)
    if new < old or old < 3:
        raise ValueError(
            f"geometric resizing makes a window of 3 or more larger, got {old} to {new}; use linear or cubic"
        )
    low, high = 1.0, float(new)
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if sum(middle**n for n in range(old - 1)) > new - 1 else (middle, high)
    right = torch.tensor([0.0, *itertools.accumulate(low**n for n in range(old - 1))], dtype=torch.float64)
    places = torch.cat((-right[1:].flip(0), right))
    wanted = torch.arange(1 - new, new, dtype=torch.float64)
    above = torch.searchsorted(places, wanted).clamp(1, len(places) - 1)
    share = ((wanted - places[above - 1]) / (places[above] - places[above - 1])).clamp(0, 1)[:, None]
    one = torch.eye(len(places), dtype=torch.float64)
    return (1 - share) * one[above - 1] + share * one[above]


def extend_clipped(table: Tensor, before: int, after: int) -> Tensor:
    """A table of clipped distances [rows, dim] (Shaw; 2 clip + 1 rows) with a clip further out: edges are repeated.

    before, after   rows to add at each end; negative numbers cut rows off

    Nothing that the model computes changes by growing: distances past the old clip read the vector they read before.
    Fine-tuning can then tell them apart. Cut, distances past the new clip share the vector at its edge.

    Raises ValueError where no row would be left.

    >>> extend_clipped(torch.tensor([[1.0], [2.0], [3.0]]), 1, 2).flatten()
    tensor([1., 1., 2., 3., 3., 3.])
    """
    rows = table.shape[0]
    if rows + min(before, 0) + min(after, 0) < 1:
        raise ValueError(f"a table of {rows} rows cannot lose {-min(before, 0)} and {-min(after, 0)} of them")
    return table[torch.arange(-before, rows + after).clamp(0, rows - 1)]
