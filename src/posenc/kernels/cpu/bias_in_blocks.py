"""The interface of biases in blocks, so that no matrix of all queries and keys is materialised.

The blocked kernel goes through the logits in blocks of queries and keys. It reads the values of a bias for each block,
and in the backward pass hands it the gradient of each block. Rows of a block are last query first, in values and
gradients: so a bias of the distance is a view of a vector.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.tokens.positions import Positions


class Block(NamedTuple):
    """Rows of the batch, queries and keys of one block; each a slice with start and stop."""

    batch: slice
    rows: slice
    keys: slice

    @property
    def size(self) -> tuple[int, int, int]:
        """Return the numbers of rows of the batch, queries and keys."""
        b, n, m = (part.stop - part.start for part in self)
        return b, n, m

    def holds(self, inner: "Block") -> bool:
        """Whether a block of the same queries lies within this one."""
        parts = zip(self, inner, strict=True)
        return self.rows == inner.rows and all(a.start <= b.start and b.stop <= a.stop for a, b in parts)

    def positions(self, at: Positions, keys_at: Positions) -> tuple[Positions, Positions]:
        """Return the positions of its queries and keys."""
        return at.batch_rows(self.batch).rows(self.rows), keys_at.batch_rows(self.batch).rows(self.keys)


class Part(NamedTuple):
    """The bias of some keys of a block: values, and one shift for each query.

    keys   a slice with start and stop
    bias   [1 or b, 1 or H, 1 or n, m] in float32 at least, of any strides; None for 0
    shift  [b, H, n], added to all logits of a query; None for 0
    """

    keys: slice
    bias: Tensor | None
    shift: Tensor | None = None


class BiasInBlocks:
    """A bias evaluated block by block, without autograd; by default no keys are far.

    name    its name in `served_by`
    inputs  tensors that the values depend on (queries, keys, remembered facts, parameters)
    owns    whether the values of a block are in its own memory, into which others may be added
    """

    name: str
    inputs: tuple[Tensor, ...]
    owns = True
    take_slopes: Callable[..., None]
    """(block, upstream, *sums) -> None: adds the gradient of a block in the inputs to the sums.

    upstream  the gradient in its logits: [b, H, n, m] in float32 at least, 0 for hidden keys, with n zeros in memory
              behind each row. It is overwritten afterwards: keep no view of it
    """

    def hold(self, inputs: tuple[Tensor, ...]) -> None:
        """Set the inputs, or drop them with (), if autograd saves or recomputes them between the passes."""

    def columns(self, block: Block) -> slice:
        """Return the keys of a block for which the bias is not 0."""
        return block.keys

    def block(self, block: Block) -> Tensor:
        """Return the values [1 or b, 1 or H, 1 or n, m] of a block. They are float32 at least, of any strides."""
        raise NotImplementedError

    def near_keys(self, block: Block) -> slice | None:
        """Return the keys that need `block`; None if `far` is as cheap for all."""
        return block.keys

    def far(self, block: Block) -> Part:
        """Return the bias of far keys alone: a row, a view or a shift."""
        raise AssertionError("all keys are near")

    def sums(self) -> tuple[Any, ...]:
        """Return new accumulators of the gradients, one set for each backward pass."""
        return tuple(map(torch.zeros_like, self.inputs))

    def total(self, sums: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        """Return the gradient in each input; None for an input without influence."""
        return sums


class ReusedMemory:
    """Memory for the values of one block at a time, since allocation costs more than the computation."""

    def __init__(self, template: Tensor, dtype: torch.dtype) -> None:
        self.memory = template.new_empty(0, dtype=dtype)

    def tensor(self, *shape: int) -> Tensor:
        """Return an uninitialised tensor of this shape, valid until the next call."""
        if self.memory.numel() < math.prod(shape):
            self.memory = self.memory.new_empty(math.prod(shape))
        return self.memory[: math.prod(shape)].view(shape)


def length(part: slice) -> int:
    return part.stop - part.start
