"""How tensors go round a ring of ranks: packed into one message, sent to the next, taken from the one before."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

ALIGNED = 16
"""Each tensor begins at a multiple of so many bytes, which every dtype may be read at."""


def rounds(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> Iterator[tuple[int, list[Tensor]]]:
    """The tensors of one rank after another, this one's first, with whose they are; all ranks' are of one shape.

    While those of one rank are read, the next ones are on their way.
    """
    rank, ranks = group.rank(), group.size()
    held, buffer = list(tensors), pack(tensors)
    for step in range(ranks):
        arrive = pass_on(buffer, group) if step < ranks - 1 else None
        yield (rank - step) % ranks, held
        if arrive is not None:
            buffer = arrive()
            held = unpack(buffer, tensors)


def pass_on(buffer: Tensor, group: dist.ProcessGroup, *, tag: int = 0) -> Callable[[], Tensor]:
    """Send a buffer to the next rank, and take that of the one before: the result waits for it.

    tag  tells apart what is on its way at the same time
    """
    incoming = torch.empty_like(buffer)
    after, before = (dist.get_global_rank(group, (group.rank() + step) % group.size()) for step in (1, -1))
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, buffer, after, group, tag), dist.P2POp(dist.irecv, incoming, before, group, tag)]
    )

    def arrive() -> Tensor:
        for work in works:
            work.wait()
        return incoming

    return arrive


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of any dtypes as one piece of memory, in bytes."""
    packed = tensors[0].new_empty(sum(map(room, tensors)), dtype=torch.uint8)
    for x, place in zip(tensors, unpack(packed, tensors), strict=True):
        place.copy_(x.detach())
    return packed


def unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in a piece of memory, of the shapes and dtypes of these: views."""
    found, start = [], 0
    for x in like:
        bytes_of_x = x.numel() * x.element_size()
        found.append(packed[start : start + bytes_of_x].view(x.dtype).view(x.shape))
        start += room(x)
    return found


def room(x: Tensor) -> int:
    """How many bytes a tensor takes in a message."""
    return math.ceil(x.numel() * x.element_size() / ALIGNED) * ALIGNED
