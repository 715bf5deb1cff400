"""Whole positions drawn from a longer range."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap, check_one_axis


@dataclass(frozen=True, kw_only=True)
class Randomised(CoordinateMap):
    """Give the n tokens of a document n different whole positions out of a longer range, in order.

    p_1 < p_2 < ... < p_n,  a random subset of 0..longest-1

    longest  the range (positions); 2048 in the paper
    seed     of the draws

    At evaluation: the same map. The released code draws at test time as well; a model trained on gaps has hardly seen
    neighbours 0, 1, 2, ..., so leaving the map away there is another experiment.

    Raises ValueError for a document longer than the range.
    Source: Ruoss et al. 2023, arXiv:2305.16843, section 3.

    >>> from posenc import Positions
    >>> at = Randomised(longest=100)(Positions.count(4))
    >>> bool((at.coords.diff(dim=1) > 0).all())
    True
    """

    equation = r"p_1 < p_2 < \dots < p_n, \quad \text{a random subset of } 0, \dots, \text{longest} - 1"
    also_called = ("randomized", "randomized_positions")

    longest: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.hold(checks.whole, longest=1, seed=0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        check_one_axis(self, coords, self.longest)
        return torch.randperm(self.longest, generator=draw, device="cpu")[: len(coords)].sort().values[:, None]
