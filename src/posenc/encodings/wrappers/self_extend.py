"""Self-Extend."""

import math

import torch

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encodings.wrappers import BranchCoords, DistanceMap


class SelfExtend(DistanceMap):
    """Give an encoding exact distances nearby, and distances between groups of tokens further away.

    distance(i, j) = i - j                                                         for |i - j| < window
                     floor(i/group) - floor(j/group) + window - floor(window/group)   for keys further in the past

    and the mirror image for keys further ahead.

    encoding  the encoding that reads these distances: rotary-like, or a bias by distance
    window    distance (positions) below which it is exact
    group     how many positions share a place beyond it (1 changes nothing)

    A model trained to length L reaches (L - window) group + window positions. Nothing is tuned. Keys are cached
    unturned, each call turns them twice and takes two products, and the logits are in memory.

    Where it goes wrong: beyond the window the order inside a group is lost, so exact copying from far away suffers.

    Raises ValueError for a window or group below 1, and for an encoding that reads more than a distance.
    Source: Jin et al. 2024, arXiv:2401.01325, section 3.

    >>> from posenc import Rotary
    >>> m, n = SelfExtend(Rotary(8), window=4, group=2).formula_positions(11, 2)
    >>> m - n
    6
    """

    equation = r"""
    \text{distance}(i, j) = \begin{cases} i - j & |i - j| < \text{window} \\ \lfloor \frac{i}{\text{group}} \rfloor -
    \lfloor \frac{j}{\text{group}} \rfloor + \text{window} - \lfloor \frac{\text{window}}{\text{group}} \rfloor & i -
    j \ge \text{window} \end{cases}
    """
    source = "Jin et al. 2024, arXiv:2401.01325, section 3"
    also_called = ("selfextend", "grouped_attention")
    extrapolates = "claimed and found to work untuned to the length that the groups reach"

    def __init__(self, encoding: Encoding, *, window: int = 512, group: int = 8) -> None:
        checks.sizes(window=window, group=group)
        super().__init__(encoding)
        self.window, self.group = window, group

    def branches(self) -> list[BranchCoords]:
        def group_index(coords: torch.Tensor) -> torch.Tensor:
            return torch.div(coords, self.group, rounding_mode="floor")

        step = self.window - self.window // self.group
        return [
            BranchCoords(lambda m: group_index(m) + step, group_index, lambda m, n: m - n >= self.window),
            BranchCoords(lambda m: group_index(m) - step, group_index, lambda m, n: m - n <= -self.window),
        ]

    def formula_positions(self, m: float, n: float) -> tuple[float, float]:
        if abs(m - n) < self.window:
            return m, n
        step = self.window - math.floor(self.window / self.group)
        return math.floor(m / self.group) + (step if m > n else -step), math.floor(n / self.group)
