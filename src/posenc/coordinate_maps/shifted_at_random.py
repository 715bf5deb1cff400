"""A shift of every document by a random distance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap


@dataclass(frozen=True, kw_only=True)
class ShiftedAtRandom(CoordinateMap):
    """Move every document by a random whole distance, so that only relative positions carry information.

    p' = p + k,  k drawn from 0..most

    most  the largest distance (positions; drawn for every axis)
    seed  of the draws

    At evaluation: none (k = 0), as in the paper.

    Source: Kiyono et al. 2021, arXiv:2109.05644, section 3.

    >>> from posenc import Positions
    >>> at = ShiftedAtRandom(most=50)(Positions.count(3))
    >>> at.coords[0, :, 0].diff().tolist()
    [1, 1]
    """

    equation = r"p' = p + k, \quad k \text{ drawn from } 0, \dots, \text{most}"
    also_called = ("shape", "shifted_absolute")

    most: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.hold(checks.whole, most=0, seed=0)

    def for_evaluation(self) -> None:
        return None

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        return coords + torch.randint(self.most + 1, (1, coords.shape[1]), generator=draw, device="cpu")
