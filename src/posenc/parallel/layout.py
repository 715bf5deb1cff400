"""The layout of a sequence over ranks: chunks of equal size, one or two on each rank."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from posenc import checks
from posenc.tokens.positions import Positions

ORDERS = ("zigzag", "contiguous")


@dataclass(frozen=True)
class Layout:
    """The assignment of chunks of a sequence to ranks.

    ranks  number of ranks
    order  "zigzag": rank r holds the chunks r and 2 ranks - 1 - r, so causal attention is balanced;
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
        """Return the chunks of a rank, in its order."""
        return (rank, self.chunks - 1 - rank) if self.order == "zigzag" else (rank,)

    def tokens(self, rank: int, tokens: int) -> Tensor:
        """Return the indices of a rank's tokens, ascending.

        Raises ValueError unless the chunks have equal size.
        """
        if tokens < 1 or tokens % self.chunks:
            raise ValueError(
                f"a sequence over {self.ranks} ranks in {self.order} order has a multiple of {self.chunks} tokens, got "
                f"{tokens}; pad it, and mark the padding with Positions.padded(mask)"
            )
        size = tokens // self.chunks
        return torch.cat([torch.arange(c * size, (c + 1) * size) for c in self.chunks_of(rank)])

    def cut(self, rank: int, x: Tensor, axis: int) -> Tensor:
        """Return a rank's part of a whole sequence along an axis of a tensor."""
        indices = self.tokens(rank, checks.tensor("what is cut", x).shape[axis])
        return x.index_select(axis, indices.to(x.device))

    def cut_positions(self, rank: int, at: Positions) -> Positions:
        """Return the positions of a rank's tokens of a whole sequence."""
        indices = self.tokens(rank, at.tokens)
        # A slice keeps the static fields of positions.
        is_one_chunk = len(self.chunks_of(rank)) == 1
        return at.rows(slice(int(indices[0]), int(indices[-1]) + 1) if is_one_chunk else indices.to(at.order.device))

    def joined(self, rank_parts: list[Tensor], axis: int) -> Tensor:
        """Return the whole sequence from the parts of all ranks."""
        chunks: dict[int, Tensor] = {}
        for rank, x in enumerate(rank_parts):
            numbers = self.chunks_of(rank)
            chunks |= dict(zip(numbers, x.chunk(len(numbers), axis), strict=True))
        return torch.cat([chunks[chunk] for chunk in range(self.chunks)], axis)

    def gather(self, x: Tensor, axis: int, group: dist.ProcessGroup) -> Tensor:
        """Gather the whole sequence on every rank; without gradients."""
        x = x.detach().contiguous()
        rank_parts = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(rank_parts, x, group=group)
        return self.joined(rank_parts, axis)
