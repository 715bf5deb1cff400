"""What is added to the logits, block by block, so that no matrix of all queries and all keys is ever held.

The blocked kernel goes through the logits in blocks of queries and keys. It asks a bias for the values of each block,
and in the backward pass hands it the gradient of each block. The rows of a block stand last query first, in values and
gradients alike: so a bias of the distance is a view of a vector.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.tokens.positions import Positions


class Block(NamedTuple):
    """Some queries of some rows of the batch, and the keys that they meet; each a slice with start and stop."""

    batch: slice
    rows: slice
    keys: slice

    @property
    def size(self) -> tuple[int, int, int]:
        """How many rows of the batch, queries and keys it has."""
        b, n, m = (part.stop - part.start for part in self)
        return b, n, m

    def holds(self, other: "Block") -> bool:
        """Whether another block of the same queries lies within it."""
        parts = zip(self, other, strict=True)
        return self.rows == other.rows and all(a.start <= b.start and b.stop <= a.stop for a, b in parts)

    def positions(self, at: Positions, keys_at: Positions) -> tuple[Positions, Positions]:
        """Where its queries and its keys stand, of all queries and keys."""
        return at.batch_rows(self.batch).rows(self.rows), keys_at.batch_rows(self.batch).rows(self.keys)


class Part(NamedTuple):
    """The bias of some keys of a block: values, and a shift of each query that all of these keys share.

    keys   which keys, a slice with start and stop
    bias   [1 or b, 1 or H, 1 or n, m] in float32 at least, of any strides; None where it is 0
    shift  [b, H, n], added to all logits of a query; None where it is 0
    """

    keys: slice
    bias: Tensor | None
    shift: Tensor | None = None


class BiasInBlocks:
    """One form of bias as it can be had block by block, without gradients; unless it says otherwise, no keys are far.

    name    what serves, in words
    inputs  what the values depend on and gradients are wanted in (queries, keys, remembered facts, parameters)
    owns    whether the values of a block are in memory of its own, into which others may be added
    """

    name: str
    inputs: tuple[Tensor, ...]
    owns = True
    take_slopes: Callable[..., None]
    """(block, upstream, *sums) -> nothing: adds the gradient of a block in the inputs to the sums.

    upstream  the gradient in its logits: [b, H, n, m] in float32 at least, zero where the mask forbids, and behind each
              of its rows n zeros in memory. It is overwritten afterwards: no view of it may be kept
    """

    def hold(self, inputs: tuple[Tensor, ...]) -> None:
        """Have these inputs, or with () none, where autograd keeps them between the passes or makes them anew."""

    def columns(self, block: Block) -> slice:
        """The keys of a block for which it says anything; elsewhere it is 0."""
        return block.keys

    def block(self, block: Block) -> Tensor:
        """The values of a block: [1 or b, 1 or H, 1 or n, m] in float32 at least, of any strides."""
        raise NotImplementedError

    def near(self, block: Block) -> slice | None:
        """The keys for which only `block` will do; None where `far` says all as cheaply."""
        return block.keys

    def far(self, block: Block) -> Part:
        """The same for keys of which none is near: a row, a view, a shift."""
        raise AssertionError("all keys are near")

    def sums(self) -> tuple[Any, ...]:
        """What the gradients are added up in on one way back: a graph may be gone through more than once."""
        return tuple(map(torch.zeros_like, self.inputs))

    def total(self, sums: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        """The gradient in each of the inputs; None for one that the bias does not depend on."""
        return sums


class Room:
    """Memory for the values of one block at a time: new memory costs more than what is computed in it."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.held = like.new_empty(0, dtype=dtype)

    def of(self, *shape: int) -> Tensor:
        """A tensor of this shape that holds anything, until the next one is asked for."""
        if self.held.numel() < math.prod(shape):
            self.held = self.held.new_empty(math.prod(shape))
        return self.held[: math.prod(shape)].view(shape)


def length(part: slice) -> int:
    return part.stop - part.start
