"""How tensors go round a ring of ranks: sent to the next, taken from the one before."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def rounds(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> Iterator[tuple[int, list[Tensor]]]:
    """The tensors of one rank after another, this one's first, with whose they are; all ranks' are of one shape.

    While those of one rank are read, the next ones are on their way.
    """
    rank, ranks = group.rank(), group.size()
    held = [x.detach().contiguous() for x in tensors]
    for step in range(ranks):
        arrive = pass_on(held, group) if step < ranks - 1 else None
        yield (rank - step) % ranks, held
        if arrive is not None:
            held = arrive()


def pass_on(tensors: Sequence[Tensor], group: dist.ProcessGroup, *, tag: int = 0) -> Callable[[], list[Tensor]]:
    """Send contiguous tensors to the next rank, and take those of the one before: the result waits for them.

    tag  tells apart what is on its way at the same time, 0 or 1
    """
    incoming = [torch.empty_like(x) for x in tensors]
    after, before = (dist.get_global_rank(group, (group.rank() + step) % group.size()) for step in (1, -1))
    operations = [
        dist.P2POp(call, x, peer, group, 2 * number + tag)
        for call, side, peer in ((dist.isend, tensors, after), (dist.irecv, incoming, before))
        for number, x in enumerate(side)
    ]
    works = dist.batch_isend_irecv(operations)

    def arrive() -> list[Tensor]:
        for work in works:
            work.wait()
        return incoming

    return arrive
