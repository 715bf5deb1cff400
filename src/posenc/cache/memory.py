"""Scattered writes of facts of tokens [B, ..., S, ...] into the slots of a cache."""

from collections.abc import Sequence

import torch
from torch import Tensor


def scatter(target: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """Return a copy of `target` with new[b, ..., t, ...] at slot[b, t] along `axis`."""
    # The dtype grows if fractional coordinates meet whole ones; the rows grow if one shared row meets several.
    dtype, rows = torch.promote_types(target.dtype, new.dtype), common_rows(target, slot, new)
    return scatter_in_place(new_memory(target, (rows, *target.shape[1:]), dtype).copy_(target), slot, new, axis)


def scatter_in_place(target: Tensor, slot: Tensor, new: Tensor, axis: int) -> Tensor:
    """Write as `scatter` does, in place if the dtype and rows of `target` can hold the new values."""
    if new.dtype != target.dtype:
        if torch.promote_types(target.dtype, new.dtype) != target.dtype:
            return scatter(target, slot, new, axis)
        new = new.to(target.dtype)
    if target.shape[0] != common_rows(target, slot, new):
        return scatter(target, slot, new, axis)
    new = new.expand(target.shape[0], *new.shape[1:])
    if slot.shape[0] == 1:
        return target.index_copy_(axis, slot[0], new)
    return target.scatter_(axis, expanded_index(slot, new, axis).expand_as(new), new)


def slot_values(memory: Tensor, slot: Tensor, axis: int) -> Tensor:
    """Return a copy of the values in the slots [B or 1, T] along `axis`."""
    return memory.take_along_dim(expanded_index(slot, memory, axis), axis)


def expanded_index(slot: Tensor, template: Tensor, axis: int) -> Tensor:
    """Return the slots [B or 1, T] with as many axes as `template`, whose tokens lie along `axis`."""
    return slot.view(slot.shape[0], *(1,) * (axis - 1), slot.shape[1], *(1,) * (template.dim() - axis - 1))


def common_rows(*facts: Tensor) -> int:
    """Return the batch size of these facts; one row broadcasts to any number."""
    for fact in facts:
        if fact.shape[0] != 1:
            return fact.shape[0]
    return 1


def new_memory(template: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an empty tensor on the device of `template` that stays writable outside inference mode."""
    with torch.inference_mode(False):
        return template.new_empty(shape, dtype=dtype)
