"""Tables read between their rows: by linear interpolation, along one axis or several.

A place is a row, whole or fractional. Whole places, of any dtype, give the entries of their rows to the bit; a place
that is NaN gives NaN.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.tokens.shared_tables import numbers


def neighbours(place: Tensor) -> tuple[Tensor, Tensor]:
    """The row below each place, and how far the place lies from it towards the next: from 0 to 1, or NaN."""
    below = place.floor()
    return below.nan_to_num(0.0).long(), place - below


def interpolated(read: Callable[[Tensor], Tensor], place: Tensor, last: int) -> Tensor:
    """What `read` gives for rows of a table, from places [...]: the entries of the two rows around each, mixed.

    read  rows -> entries, of the same shape or with channels behind it
    last  the last row: it stands above itself
    """
    if not place.is_floating_point():
        return read(place)
    below, share = neighbours(place)
    first, second = read(below), read((below + 1).clamp(max=last))
    share = share.to(first.dtype)
    return torch.lerp(first, second, share if share.dim() == first.dim() else share[..., None])


def interpolated_on_axes(read: Callable[[Tensor], Tensor], place: Tensor, dtype: torch.dtype) -> Tensor:
    """The same from places [..., A] on several axes: the entries [..., C] of the 2^A cells around each, mixed.

    read   cells [..., A] -> entries; it decides what lies past the last cell of an axis
    dtype  of the shares: half precision would round each of them
    """
    if not place.is_floating_point():
        return read(place)
    below, share = neighbours(place)
    share = share.to(dtype)
    total: Tensor | float = 0.0
    for corner in itertools.product((0, 1), repeat=place.shape[-1]):
        up = numbers(corner, torch.long, place.device)
        total = total + torch.where(up == 1, share, 1 - share).prod(-1, keepdim=True) * read(below + up)
    assert isinstance(total, Tensor)
    return total


def matrix_of(old: int, new: int, **how: Any) -> Tensor:
    """The matrix [new, old], float64, of torch.nn.functional.interpolate with these options: the mode, and so on."""
    # What resampling makes of unit vectors is the matrix that resamples everything.
    return F.interpolate(torch.eye(old, dtype=torch.float64, device="cpu")[None, None], (new, old), **how)[0, 0]


def resample(table: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """A table [prod(old sizes), dim] over a grid, the last axis running fastest, resampled along each axis.

    matrices   [new, old] for each axis, as `matrix_of` gives them

    In float64, rounded once to the table's dtype.
    """
    cells = table.double().view(*(matrix.shape[1] for matrix in matrices), table.shape[-1])
    for axis, matrix in enumerate(matrices):
        cells = torch.tensordot(matrix.to(cells.device), cells, dims=([1], [axis])).movedim(0, axis)
    return cells.flatten(0, -2).to(table.dtype)


def adopt_table(state_dict: dict[str, Any], prefix: str, encoding: Any) -> None:
    """Call the one table [rows, dim] under a prefix of a state dict, as wide as an encoding, with axes of 1, `table`.

    Models have it under names of their own: pe, pos_embed, wpe.weight. Where several would do, none is taken.
    """
    names = [
        name
        for name, value in state_dict.items()
        if name.startswith(prefix) and isinstance(value, Tensor)
        if value.dim() > 1 and value.shape[-1] == encoding.dim and value.numel() == max(value.shape[:-1]) * encoding.dim
    ]
    if len(names) == 1:
        state_dict[f"{prefix}table"] = state_dict.pop(names[0]).reshape(-1, encoding.dim)
