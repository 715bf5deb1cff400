"""What is added to the logits, block by block, so that no matrix of all queries and all keys is ever held.

The blocked kernel goes through the logits in blocks of queries and keys. It asks a bias for the values of each block,
and in the backward pass hands it the gradient of each block. The rows of a block stand last query first, in values and
gradients alike: so a bias of the distance is a view of a vector.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

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


class BiasGradient(Protocol):
    """Collects the gradient of a bias in what it depends on, in one pass backwards."""

    def add(self, block: Block, upstream: Tensor) -> None:
        """Take in the gradient in the logits of a block: [b, H, n, m] in float32 at least, zero where the mask forbids.

        Behind each of its rows lie n zeros in memory. It is overwritten afterwards: no view of it may be kept.
        """

    def total(self) -> tuple[Tensor | None, ...]:
        """The gradient in each of the bias's `inputs`; None for one that it does not depend on."""


class InBlocks(Protocol):
    """One form of bias as it can be had block by block, without gradients.

    name    what serves, in words
    inputs  what the values depend on and gradients are wanted in (queries, keys, remembered facts, parameters)
    owns    whether the values of a block are in memory of its own, into which others may be added
    """

    name: str
    inputs: tuple[Tensor, ...]
    owns: bool

    def columns(self, block: Block) -> slice:
        """The keys of a block for which it says anything; elsewhere it is 0."""

    def block(self, block: Block) -> Tensor:
        """The values of a block: [1 or b, 1 or H, 1 or n, m] in float32 at least, of any strides."""

    def near(self, block: Block) -> slice | None:
        """The keys for which only `block` will do; None where `far` says all as cheaply."""

    def far(self, block: Block) -> Part:
        """The same for keys of which none is near: a row, a view, a shift."""

    def gradient(self) -> BiasGradient:
        """A collector that holds nothing yet: a graph may be gone through backwards more than once."""


class WholeBlocks:
    """What a form has unless it says otherwise: no shorter way for any keys, and memory of its own."""

    inputs: tuple[Tensor, ...]
    owns: bool = True
    take_slopes: Callable[..., None]
    """(block, upstream, the gradient of each input so far) -> nothing: adds that of the block; for `gradient` alone."""

    def columns(self, block: Block) -> slice:
        return block.keys

    def near(self, block: Block) -> slice | None:
        return block.keys

    def far(self, block: Block) -> Part:
        raise AssertionError("all keys are near")

    def gradient(self) -> BiasGradient:
        return Slopes(self)


class Slopes:
    """The gradient in each input of a form that takes it from a block by itself."""

    def __init__(self, bias: WholeBlocks) -> None:
        self.bias, self.sums = bias, tuple(map(torch.zeros_like, bias.inputs))

    def add(self, block: Block, upstream: Tensor) -> None:
        self.bias.take_slopes(block, upstream, *self.sums)

    def total(self) -> tuple[Tensor | None, ...]:
        return self.sums


class Room:
    """Memory for the values of one block at a time: new memory costs more than what is computed in it."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.held = like.new_empty(0, dtype=dtype)

    def of(self, *shape: int) -> Tensor:
        """A tensor of this shape that holds anything, until the next one is asked for."""
        if self.held.numel() < math.prod(shape):
            self.held = self.held.new_empty(math.prod(shape))
        return self.held[: math.prod(shape)].view(shape)


def cut(whole: slice, step: int) -> list[slice]:
    """A slice in slices of at most so many."""
    return [slice(start, min(start + step, whole.stop)) for start in range(whole.start, whole.stop, step)]


def length(part: slice) -> int:
    return part.stop - part.start
