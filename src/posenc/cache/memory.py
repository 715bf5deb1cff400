"""The memory that caches write into: facts of tokens [B, ..., S, ...] in their slots."""

from collections.abc import Sequence

import torch
from torch import Tensor


def scattered(into: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """`into` with new[b, ..., t, ...] at slot[b, t] along `axis`, as a new tensor."""
    # What was held may be whole coordinates, and this fractions; or one row, of which several were chosen.
    dtype, rows = torch.promote_types(into.dtype, new.dtype), together(into, slot, new)
    return scatter_in_place(memory(into, (rows, *into.shape[1:]), dtype).copy_(into), slot, new, axis)


def scatter_in_place(into: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """The same, in the memory of `into` where its dtype and its rows can hold the new values."""
    if new.dtype != into.dtype:
        if torch.promote_types(into.dtype, new.dtype) != into.dtype:
            return scattered(into, slot, new, axis)
        new = new.to(into.dtype)
    if into.shape[0] != together(into, slot, new):
        return scattered(into, slot, new, axis)
    new = new.expand(into.shape[0], *new.shape[1:])
    if slot.shape[0] == 1:
        return into.index_copy_(axis, slot[0], new)
    return into.scatter_(axis, index_of(slot, new, axis).expand_as(new), new)


def slot_values(memory: Tensor, slot: Tensor, axis: int) -> Tensor:
    """What lies in the slots [B or 1, T] along `axis`, in memory of its own."""
    return memory.take_along_dim(index_of(slot, memory, axis), axis)


def index_of(slot: Tensor, like: Tensor, axis: int) -> Tensor:
    """The slots [B or 1, T] with as many axes as a tensor whose tokens lie along `axis`."""
    return slot.view(slot.shape[0], *(1,) * (axis - 1), slot.shape[1], *(1,) * (like.dim() - axis - 1))


def together(*facts: Tensor) -> int:
    """The rows of a batch that these facts are of; one row may stand for any number of them, or for none."""
    for fact in facts:
        if fact.shape[0] != 1:
            return fact.shape[0]
    return 1


def memory(like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory of a shape on the device of `like`, to be written in every mode: inference mode's own is not."""
    with torch.inference_mode(False):
        return like.new_empty(shape, dtype=dtype)
