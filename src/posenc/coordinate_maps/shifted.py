"""A shift of every token by one distance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap


@dataclass(frozen=True, kw_only=True)
class Shifted(CoordinateMap):
    """Move every token by the same distance.

    p' = p + by

    by  the distance (positions; along every axis)

    At evaluation: the same map, or none; an encoding that reads distances cannot tell.

    Raises ValueError where whole positions would fall below 0.
    Source: a shift as such is common property; the random one: Kiyono et al. 2021, arXiv:2109.05644.

    >>> from posenc import Positions
    >>> Shifted(by=3)(Positions.count(2)).coords[0, :, 0].tolist()
    [3, 4]
    """

    equation = r"p' = p + \text{by}"

    by: float

    def __post_init__(self) -> None:
        self.hold(checks.number, by=None)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        shifted_coords = coords + self.by if self.by % 1 else coords + int(self.by)
        if not shifted_coords.is_floating_point() and int(shifted_coords.min()) < 0:
            raise ValueError(
                f"{self} moves position {int(coords.min())} below 0; give floating positions if that is meant"
            )
        return shifted_coords
