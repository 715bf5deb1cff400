"""How a sequence is cut over ranks: into chunks of equally many tokens, of which each rank holds one or two."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from posenc import checks
from posenc.tokens.positions import Positions

ORDERS = ("zigzag", "contiguous")


@dataclass(frozen=True)
class Layout:
    """Which chunks of a sequence which rank holds.

    ranks  how many there are
    order  "zigzag": rank r holds the chunks r and 2 ranks - 1 - r, so that causal attention is as much work on each;
           "contiguous": rank r holds chunk r

    >>> Layout(2, "zigzag").chunks_of(1)
    (1, 2)
    """

    ranks: int
    order: str = "zigzag"

    def __post_init__(self) -> None:
        checks.one_of("order", self.order, ORDERS)

    @property
    def chunks(self) -> int:
        return 2 * self.ranks if self.order == "zigzag" else self.ranks

    def chunks_of(self, rank: int) -> tuple[int, ...]:
        """The chunks that a rank holds, in the order in which it holds them."""
        return (rank, self.chunks - 1 - rank) if self.order == "zigzag" else (rank,)

    def tokens(self, rank: int, tokens: int) -> Tensor:
        """Which of the tokens of a sequence a rank holds: indices, ascending.

        Raises ValueError unless they fall into chunks of equally many.
        """
        if tokens < 1 or tokens % self.chunks:
            raise ValueError(
                f"a sequence over {self.ranks} ranks in {self.order} order has a multiple of {self.chunks} tokens, got "
                f"{tokens}; pad it, and say which tokens are padding with Positions.padded(mask)"
            )
        size = tokens // self.chunks
        return torch.cat([torch.arange(c * size, (c + 1) * size) for c in self.chunks_of(rank)])

    def cut(self, rank: int, x: Tensor, axis: int) -> Tensor:
        """What a rank holds of a whole sequence, along an axis of a tensor."""
        mine = self.tokens(rank, checks.tensor("what is cut", x).shape[axis])
        return x.index_select(axis, mine.to(x.device))

    def cut_positions(self, rank: int, at: Positions) -> Positions:
        """Where the tokens stand that a rank holds of a whole sequence."""
        mine = self.tokens(rank, at.tokens)
        # A slice keeps what is known of positions without looking at them.
        whole = len(self.chunks_of(rank)) == 1
        return at.rows(slice(int(mine[0]), int(mine[-1]) + 1) if whole else mine.to(at.order.device))

    def joined(self, of_ranks: list[Tensor], axis: int) -> Tensor:
        """A whole sequence from what each rank holds of it."""
        held: dict[int, Tensor] = {}
        for rank, x in enumerate(of_ranks):
            own = self.chunks_of(rank)
            held |= dict(zip(own, x.chunk(len(own), axis), strict=True))
        return torch.cat([held[chunk] for chunk in range(self.chunks)], axis)

    def gathered(self, x: Tensor, axis: int, group: dist.ProcessGroup) -> Tensor:
        """A whole sequence on every rank from what each holds of it; without gradients."""
        x = x.detach().contiguous()
        held = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(held, x, group=group)
        return self.joined(held, axis)
