"""Positions squeezed into the trained range."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap


@dataclass(frozen=True, kw_only=True)
class Interpolated(CoordinateMap):
    """Squeeze positions, so that a longer text falls into the trained range.

    p' = p / factor

    factor  target length / trained length (along every axis); below 1 it stretches

    At evaluation: the same map. For rotary it is the linear schedule; here every encoding has it. Without
    fine-tuning the short range suffers at once.

    Source: Chen et al. 2023, arXiv:2306.15595, section 2.3.

    >>> from posenc import Positions
    >>> Interpolated(factor=2)(Positions.count(4)).coords[0, :, 0].tolist()
    [0.0, 0.5, 1.0, 1.5]
    """

    equation = r"p' = \frac{p}{\text{factor}}"
    also_called = ("position_interpolation",)

    factor: float

    def __post_init__(self) -> None:
        checks.number("interpolated: factor", self.factor, above=0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        return coords.double() / self.factor
