"""Chunks with gaps between: PoSE."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc import checks
from posenc.coordinate_maps._coordinate_map import CoordinateMap, check_one_axis


@dataclass(frozen=True, kw_only=True)
class SkippedChunks(CoordinateMap):
    """Cut a document into chunks that lie apart: neighbours inside a chunk, random gaps between them.

    p_i = i + u_c(i),  0 = u_1 <= u_2 <= ... <= longest - n, each drawn from what its predecessor leaves

    longest  the range to be covered (positions): the context that one fine-tunes for
    chunks   into how many pieces, at random cuts; 2 in the paper
    seed     of the draws

    At evaluation: none; positions in a row, up to longest.

    The released code cuts in the first half and takes the second chunk's text from further on; the choice of text is
    for the data, not for a map. The first chunk starts at 0, as in the released code.

    Raises ValueError for a document longer than the range.
    Source: Zhu et al. 2023, arXiv:2309.10400, section 3.

    >>> from posenc import Positions
    >>> at = SkippedChunks(longest=64)(Positions.count(8))
    >>> int((at.coords.diff(dim=1) != 1).sum()) <= 1
    True
    """

    equation = r"p_i = i + u_c(i), \quad 0 = u_1 \le u_2 \le \dots \le \text{longest} - n"
    also_called = ("pose", "positional_skip")

    longest: int
    chunks: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        self.hold(checks.whole, longest=1, chunks=1, seed=0)

    def for_evaluation(self) -> None:
        return None

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        check_one_axis(self, coords, self.longest)
        n = len(coords)
        # Cuts between tokens: where one falls, the gap before this token opens.
        cuts = 1 + torch.randperm(n - 1, generator=draw, device="cpu")[: self.chunks - 1].sort().values
        at, total_gap = torch.arange(n, device="cpu"), 0
        for cut in cuts.tolist():
            gap = int(torch.randint(total_gap, self.longest - n + 1, (), generator=draw, device="cpu")) - total_gap
            total_gap += gap
            at[cut:] += gap
        return at[:, None]
