"""Running sums along a sequence that is cut over ranks: each rank's own, and what lies before each of its chunks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from posenc.parallel.layout import Layout
from posenc.positions import Positions
from posenc.precision import most_exact


def running_sums(values: Tensor, at: Positions, layout: Layout, group: dist.ProcessGroup) -> Tensor:
    """The sum of a fact of tokens [B, H, T, ...] over the whole sequence up to each of this rank's tokens.

    The ranks exchange one sum for each chunk. Padding counts nothing; documents stand behind one another on one line,
    so that differences within one are those of its own tokens.
    """
    present = (at.order >= 0)[:, None, :].unflatten(2, (-1, *(1,) * (values.dim() - 3)))
    parts = most_exact(values).masked_fill(~present, 0.0).chunk(len(layout.chunks_of(group.rank())), 2)
    within = [part.cumsum(2) for part in parts]
    before = SumsBefore.apply(torch.stack([part[:, :, -1] for part in within]), layout, group)
    return torch.cat([part + offset[:, :, None] for part, offset in zip(within, before.unbind(0), strict=True)], 2)


class SumsBefore(torch.autograd.Function):
    """For this rank's chunks, whose totals [chunks, ...] are given, the sum of the totals of all chunks before each."""

    @staticmethod
    def forward(ctx: Any, totals: Tensor, layout: Layout, group: dist.ProcessGroup) -> Tensor:
        ctx.layout, ctx.group = layout, group
        whole = in_order(totals, layout, group)
        return (whole.cumsum(0) - whole)[list(layout.chunks_of(group.rank()))]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # A total enters the sums of all chunks behind it.
        whole = in_order(*grads, ctx.layout, ctx.group)
        behind = whole.flip(0).cumsum(0).flip(0) - whole
        return behind[list(ctx.layout.chunks_of(ctx.group.rank()))], None, None


def in_order(of_chunks: Tensor, layout: Layout, group: dist.ProcessGroup) -> Tensor:
    """What each rank has of its chunks, [chunks, ...], for all chunks of the sequence."""
    of_chunks = of_chunks.contiguous()
    held = [torch.empty_like(of_chunks) for _ in range(layout.ranks)]
    dist.all_gather(held, of_chunks, group=group)
    return layout.joined(held, 0)
