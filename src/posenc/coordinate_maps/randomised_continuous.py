"""Real positions drawn from a range, or spread evenly over it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap, check_one_axis


@dataclass(frozen=True, kw_only=True)
class RandomisedContinuous(CoordinateMap):
    """Give the n tokens of a document n random real positions out of a range, in order.

    random: p_1 <= p_2 <= ... <= p_n, sorted draws from U[0, longest)
    even:   p_i = longest (2 i - 1) / (2 max(trained_length, n)),  i = 1..n

    longest         the range (positions); 1 in the paper
    even            False for training: random. True for evaluation: evenly spread, nothing is drawn
    trained_length  the trained length (tokens), for even ones
    seed            of the draws

    At evaluation: even=True, evenly spread over the same range, as in the paper. There n counts the document's tokens:
    a sequence that still grows needs its final length as `trained_length`, else every step would move all tokens.

    Source: Shimizu, Taniguchi, Matsuo 2026, arXiv:2602.14050.

    >>> from posenc import Positions
    >>> RandomisedContinuous(longest=8, even=True)(Positions.count(4)).coords[0, :, 0].tolist()
    [1.0, 3.0, 5.0, 7.0]
    """

    equation = r"""
    p_1 \le p_2 \le \dots \le p_n, \quad p_i \sim U[0, \text{longest}) \quad \text{(random)}

    p_i = \frac{\text{longest} \, (2 i - 1)}{2 \max(\text{trained length}, n)} \quad \text{(even)}
    """
    also_called = ("random_float_sampling", "rfs")

    longest: float
    even: bool = False
    trained_length: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        checks.number("randomised_continuous: longest", self.longest, above=0)
        self.hold(checks.kind, even=bool)
        self.hold(checks.whole, trained_length=1, seed=0)

    def for_evaluation(self) -> "RandomisedContinuous":
        return replace(self, even=True)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        check_one_axis(self, coords)
        n = len(coords)
        if self.even:
            share = (2 * torch.arange(n, dtype=torch.float64, device="cpu") + 1) / (2 * max(self.trained_length, n))
        else:
            share = torch.rand(n, generator=draw, dtype=torch.float64, device="cpu").sort().values
        return self.longest * share[:, None]
