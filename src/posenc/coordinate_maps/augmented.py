"""Random shifts, jitter and stretch: CAPE."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap


@dataclass(frozen=True, kw_only=True)
class Augmented(CoordinateMap):
    """Shift every document, jitter every token, and stretch the whole, all at random.

    p'_i = (p_i + D + e_i) s,  D from U(-shift, shift),  e_i from U(-jitter, jitter),  ln s from U(-ln scale, ln scale)

    shift   the largest shift of a document (positions; drawn for every axis)
    jitter  the largest shift of one token (positions); up to 0.5 neighbours keep their order
    scale   the largest stretch (ratio, 1 or more)
    seed    of the draws

    At evaluation: none, positions as they are, as in the paper. Its variant that first subtracts each document's mean
    position is left out.

    Source: Likhomanenko et al. 2021, arXiv:2106.03143, section 3.

    >>> from posenc import Positions
    >>> bool((Augmented(shift=5.0)(Positions.count(9)).coords.diff(dim=1) >= 0).all())
    True
    """

    equation = r"""
    p'_i = (p_i + D + e_i) \, s

    D \sim U(-\text{shift}, \text{shift}), \quad e_i \sim U(-\text{jitter}, \text{jitter}), \quad \ln\, s \sim
    U(-\ln\, \text{scale}, \ln\, \text{scale})
    """
    also_called = ("continuous_augmented", "cape_augmented")

    shift: float
    jitter: float = 0.5
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.hold(checks.number, shift=0, jitter=0, scale=1)
        self.hold(checks.whole, seed=0)

    def for_evaluation(self) -> None:
        return None

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        n, axes = coords.shape

        def uniform(limit: float, *shape: int) -> Tensor:
            return limit * (2 * torch.rand(*shape, generator=draw, dtype=torch.float64, device="cpu") - 1)

        # The jitter comes last: the draws of a document's start do not depend on its length.
        shift, stretch = uniform(self.shift, 1, axes), uniform(math.log(self.scale), 1, 1).exp()
        return (coords.double() + shift + uniform(self.jitter, n, axes)) * stretch
