"""One position for digits of equal significance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap, check_one_axis, digit_places


@dataclass(frozen=True, kw_only=True)
class Coupled(CoordinateMap):
    """Give digits of equal significance the same position, in every number of a sum.

    p = k + width - s for a digit of significance s (0 for ones),  k + width + 1 for what is no digit,
    k drawn from 1..most+1 once for a document

    first_digit  token id of the digit 0; the ids of digits follow one another
    equals       token id behind which the result stands, written with its ones first
    width        digits of the longest number, the result included (positions)
    digits       how many digits there are
    most         how far a document may start from 1 (positions)
    seed         of the draws

    Numbers before `equals` are written with their ones last; each must be complete, the result may still grow.

    At evaluation: the same map, or most=0 for one fixed start. The released code counts back from the longest operand
    of each sum; here it is from `width`, the same up to the start, so that positions do not depend on tokens to come.

    Raises ValueError for a number of more digits than width.
    Source: Cho et al. 2024, arXiv:2405.20671, section 3.

    >>> import torch
    >>> from posenc import Positions
    >>> ids = torch.tensor([5, 3, 10, 4, 11, 7, 5])  # 53+4=75, the result reversed
    >>> Coupled(first_digit=0, equals=11, width=3)(Positions.count(7), ids).coords[0, :, 0].tolist()
    [3, 4, 5, 4, 5, 4, 3]
    """

    equation = r"p = k + \text{width} - s"
    also_called = ("position_coupling",)
    reads_ids = True

    first_digit: int
    equals: int
    width: int
    digits: int = 10
    most: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self.hold(checks.whole, first_digit=0, equals=0, width=1, digits=1, most=0, seed=0)
        if self.first_digit <= self.equals < self.first_digit + self.digits:
            raise ValueError(f"coupled: equals must be no digit, got the id {self.equals} of one")

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        check_one_axis(self, coords)
        digit, place = digit_places(ids, self.first_digit, self.digits)
        _, from_end = digit_places(ids.flip(0), self.first_digit, self.digits)
        in_result = (ids == self.equals).cumsum(0) > 0
        significance = torch.where(in_result, place, from_end.flip(0))
        longest = int(torch.where(digit, significance, -1).max()) + 1
        if longest > self.width:
            raise ValueError(
                f"{self} holds numbers of {self.width} digits, got one of {longest}; choose width={longest}"
            )
        units = self.width + 1 + torch.randint(self.most + 1, (), generator=draw, device="cpu")
        return torch.where(digit, units - significance, units + 1)[:, None]
