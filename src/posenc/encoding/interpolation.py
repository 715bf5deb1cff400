"""Linear interpolation between the rows of a table, along one axis or several.

A place is a row, whole or fractional. Whole places, of any dtype, give the entries of their rows exactly; NaN stays.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.tokens.shared_tables import number_tensor


def neighbours(place: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row below each place, and the remaining fraction of a row (0 to 1, or NaN)."""
    floor = place.floor()
    return floor.nan_to_num(0.0).long(), place - floor


def interpolate(read: Callable[[Tensor], Tensor], place: Tensor, last: int) -> Tensor:
    """Return the entries of a table at places [...], interpolated between the two rows around each.

    read  rows -> entries, of the same shape or with channels behind it
    last  the last row, which is its own upper neighbour
    """
    if not place.is_floating_point():
        return read(place)
    floor, share = neighbours(place)
    first, second = read(floor), read((floor + 1).clamp(max=last))
    share = share.to(first.dtype)
    return torch.lerp(first, second, share if share.dim() == first.dim() else share[..., None])


def interpolate_on_axes(read: Callable[[Tensor], Tensor], place: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the entries [..., C] interpolated between the 2^A cells around each place [..., A].

    read   cells [..., A] -> entries; it handles cells past the end of an axis
    dtype  of the weights: half precision would round each of them
    """
    if not place.is_floating_point():
        return read(place)
    floor, share = neighbours(place)
    share = share.to(dtype)
    total: Tensor | float = 0.0
    for corner in itertools.product((0, 1), repeat=place.shape[-1]):
        is_upper = number_tensor(corner, torch.long, place.device)
        total = total + torch.where(is_upper == 1, share, 1 - share).prod(-1, keepdim=True) * read(floor + is_upper)
    assert isinstance(total, Tensor)
    return total


def resampling_matrix(old: int, new: int, **how: Any) -> Tensor:
    """Return the matrix [new, old], float64, of torch.nn.functional.interpolate with these options."""
    # Resampling is linear, so resampled unit vectors are the columns of its matrix.
    return F.interpolate(torch.eye(old, dtype=torch.float64, device="cpu")[None, None], (new, old), **how)[0, 0]


def resample(table: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return a table [prod(old sizes), dim] over a grid, last axis fastest, resampled along each axis.

    matrices   [new, old] for each axis, from `resampling_matrix`

    In float64, rounded once to the table's dtype.
    """
    cells = table.double().view(*(matrix.shape[1] for matrix in matrices), table.shape[-1])
    for axis, matrix in enumerate(matrices):
        cells = torch.tensordot(matrix.to(cells.device), cells, dims=([1], [axis])).movedim(0, axis)
    return cells.flatten(0, -2).to(table.dtype)


def adopt_table(state_dict: dict[str, Any], prefix: str, encoding: Any) -> None:
    """Rename the one table [rows, encoding.dim] under a prefix of a state dict to `table`.

    Models call it pe, pos_embed or wpe.weight. Axes of 1 are dropped; if several tables fit, none is renamed.
    """
    names = [
        name
        for name, value in state_dict.items()
        if name.startswith(prefix) and isinstance(value, Tensor)
        if value.dim() > 1 and value.shape[-1] == encoding.dim and value.numel() == max(value.shape[:-1]) * encoding.dim
    ]
    if len(names) == 1:
        state_dict[f"{prefix}table"] = state_dict.pop(names[0]).reshape(-1, encoding.dim)
