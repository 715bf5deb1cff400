"""The digits of each number counted from its first."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap, check_one_axis, digit_places


@dataclass(frozen=True, kw_only=True)
class Abacus(CoordinateMap):
    """Count the digits of every number from 1; all other tokens have position 0.

    p = k + 1, k + 2, ... inside a number,  k drawn from 0..most once for a document

    first_digit  token id of the digit 0; the ids of digits follow one another
    digits       how many digits there are
    most         the largest offset (positions): it trains the rows that longer numbers will need; 99 in the paper
    seed         of the draws

    At evaluation: most=0, as in the released code: digits count from 1. Numbers have to be written with the last digit
    first, else equal positions are no equal significance. The released code draws one k for a batch, this one for each
    document.

    Source: McLeish et al. 2024, arXiv:2405.17399, section 3.

    >>> import torch
    >>> from posenc import Positions
    >>> Abacus(first_digit=0)(Positions.count(6), torch.tensor([7, 2, 11, 4, 4, 12])).coords[0, :, 0].tolist()
    [1, 2, 0, 1, 2, 0]
    """

    equation = r"p = k + 1, \; k + 2, \dots \quad k \text{ drawn from } 0, \dots, \text{most}"
    also_called = ("digit_positions",)
    reads_ids = True

    first_digit: int
    digits: int = 10
    most: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self.hold(checks.whole, first_digit=0, digits=1, most=0, seed=0)

    def for_evaluation(self) -> "Abacus":
        return replace(self, most=0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        check_one_axis(self, coords)
        digit, place = digit_places(ids, self.first_digit, self.digits)
        offset = torch.randint(self.most + 1, (), generator=draw, device="cpu")
        return torch.where(digit, place + 1 + offset, 0)[:, None]
