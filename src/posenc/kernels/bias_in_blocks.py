"""What is added to the logits, block by block, so that no matrix of all queries and all keys is ever held.

The blocked kernel goes through the logits in blocks of queries and keys. It asks a bias for the values of each block,
and in the backward pass hands it the gradient of each block.
"""

from typing import NamedTuple, Protocol

from torch import Tensor


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


class Part(NamedTuple):
    """The bias of some keys of a block: values, and a shift of each query that all of these keys share.

    keys   which keys, a slice with start and stop
    bias   [1 or b, 1 or H, n, m] in float32 at least, of any strides; None where it is 0
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


class BiasInBlocks(Protocol):
    """A bias of the scaled logits that can be had block by block, without gradients.

    inputs     what the values depend on and gradients are wanted in (queries, keys, remembered facts, parameters)
    backwards  whether the rows of its blocks come last query first, as those of a Hankel view do: in `block` and
               `parts`, and in the upstream of its gradient
    masked     whether the values are -inf wherever causality and window forbid, for tokens in a row; else the kernel
               sees to it. What else a mask says (given tensors, a prefix, padding, documents) is up to the kernel
    """

    inputs: tuple[Tensor, ...]
    backwards: bool
    masked: bool

    def block(self, block: Block) -> Tensor | None:
        """The values of a block: [1 or b, 1 or H, n, m] in float32 at least, of any strides; None where all are 0.

        They are never changed, so a view is best. The backward pass asks for fewer keys at once than the forward pass.
        """

    def parts(self, block: Block) -> list[Part]:
        """The same in parts that together have all keys of the block, each once."""

    def gradient(self) -> BiasGradient:
        """A collector that holds nothing yet: a graph may be gone through backwards more than once."""


class NoBias:
    """Nothing is added."""

    inputs: tuple[Tensor, ...] = ()
    backwards = masked = False

    def block(self, block: Block) -> None:
        return None

    def parts(self, block: Block) -> list[Part]:
        return [Part(block.keys, None)]

    def gradient(self) -> BiasGradient:
        raise AssertionError("nothing depends on what is not there")
