"""Counts that begin again behind a separator."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap, check_one_axis


@dataclass(frozen=True, kw_only=True)
class Restarted(CoordinateMap):
    """Count from 0 again behind every separator.

    p = the number of tokens since the last separator before it, which is itself the end of its piece

    separator  token id of it

    At evaluation: the same map. Causality stays: a token still sees the pieces before its own, unlike packed documents.

    Source: a reset as such is common property (Megatron-LM, --reset-position-ids).

    >>> import torch
    >>> from posenc import Positions
    >>> Restarted(separator=9)(Positions.count(5), torch.tensor([3, 3, 9, 3, 3])).coords[0, :, 0].tolist()
    [0, 1, 2, 0, 1]
    """

    equation = r"p = \text{the number of tokens since the last separator}"
    also_called = ("reset_position_ids",)
    reads_ids = True

    separator: int

    def __post_init__(self) -> None:
        self.hold(checks.whole, separator=0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        check_one_axis(self, coords)
        token = torch.arange(len(ids), device="cpu")
        begins = torch.where(torch.cat((ids.new_zeros(1), (ids == self.separator)[:-1].long())) == 1, token, 0)
        return (token - begins.cummax(0).values)[:, None]
