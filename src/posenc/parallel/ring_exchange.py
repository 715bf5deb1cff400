"""Ring communication: each rank sends tensors to the next rank, and receives from the previous one."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def rounds(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield the tensors of each rank with its number, this rank first. The next ones are in transfer meanwhile."""
    rank, ranks = group.rank(), group.size()
    current = [x.detach().contiguous() for x in tensors]
    for step in range(ranks):
        arrive = pass_on(current, group) if step < ranks - 1 else None
        yield (rank - step) % ranks, current
        if arrive is not None:
            current = arrive()


def pass_on(tensors: Sequence[Tensor], group: dist.ProcessGroup, *, tag: int = 0) -> Callable[[], list[Tensor]]:
    """Send contiguous tensors to the next rank; return a function that waits for those of the previous rank.

    tag  distinguishes transfers at the same time, 0 or 1
    """
    incoming = [torch.empty_like(x) for x in tensors]
    next_rank, previous_rank = (dist.get_global_rank(group, (group.rank() + step) % group.size()) for step in (1, -1))
    operations = [
        dist.P2POp(call, x, peer, group, 2 * number + tag)
        for call, side, peer in ((dist.isend, tensors, next_rank), (dist.irecv, incoming, previous_rank))
        for number, x in enumerate(side)
    ]
    works = dist.batch_isend_irecv(operations)

    def arrive() -> list[Tensor]:
        for work in works:
            work.wait()
        return incoming

    return arrive
