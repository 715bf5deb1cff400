"""Dot products with a vector of the distance in blocks, for tokens in a row: fewer products than there are pairs.

The products of a token with the vectors of distances are a curve, and a block is a skewed view of its tokens' curves.
Distances that share a vector have it each: looking up takes longer than multiplying.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from posenc.encoding.biases import DotProducts, Products
from posenc.kernels.block_sizes import SIZES, cut
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, Room, length
from posenc.kernels.cpu.plan import Row


def products_in_row(bias: Products, row: Row, queries: int, keys: int) -> "list[Curves]":
    """The terms of a bias, for so many queries and keys in a row."""
    table = row.met(queries, keys, bias.same_beyond)
    return [(Columns if term.of_keys else Curves)(term, row, table) for term in bias.dot_products(table)]


class Curves(BiasInBlocks):
    """Queries times the vectors of the distances in `table` (descending): the bias of a query by distance, a curve.

    From one query to the next a key moves by one distance, so a block of the bias is a view of the block's curves, each
    row a step further on.
    """

    name = "products in a row"

    def __init__(self, term: DotProducts, row: Row, table: range) -> None:
        self.asked, self.vectors = term.asked, term.vectors
        self.row, self.table = row, table[: self.vectors.shape[1]]  # one distance stands for all that share one vector
        self.inputs: tuple[Tensor, ...] = (self.asked, self.vectors)
        self.room = Room(self.asked, self.asked.dtype)

    def near(self, block: Block) -> slice | None:
        return self.between_edges(block)

    def far(self, block: Block) -> Part:
        known, _ = self.met(block)
        return Part(block.keys, None, self.multiplied(self.last_first(block), known)[..., 0])

    def take_slopes(self, block: Block, upstream: Tensor, of_asked: Tensor, of_vectors: Tensor) -> None:
        known, sums = self.by_distance(block, upstream)
        of_asked[block.batch, :, block.rows] += (sums @ self.vectors[:, known]).flip(2)
        add_to_vectors(of_vectors, known, sums, self.last_first(block))

    def between_edges(self, block: Block) -> slice:
        """The keys whose vector is not the same for all: before and behind, edges of the table."""
        start, stop = block.keys.start, block.keys.stop
        if self.row.highest == math.inf:
            start = min(max(start, block.rows.start + self.row.offset - self.table[0] + 1), stop)
        if self.row.lowest == -math.inf:
            stop = max(min(stop, block.rows.stop - 1 + self.row.offset - self.table[-1]), start)
        return slice(start, stop)

    def top(self, block: Block) -> int:
        """The distance from the last query of a block to its first key."""
        return block.rows.stop - 1 - block.keys.start + self.row.offset

    def last_first(self, block: Block) -> Tensor:
        """What the queries of a block ask, last query first."""
        return self.asked[block.batch, :, block.rows].flip(2)

    def multiplied(self, asked: Tensor, vectors: slice, out: Tensor | None = None) -> Tensor:
        """Tokens [b, H, n, C] times some of the vectors: [b, H, n, R]."""
        return torch.matmul(asked, self.vectors[:, vectors].transpose(-1, -2), out=out)

    def block(self, block: Block) -> Tensor:
        return skewed(self.curves(block, self.last_first(block)), block.size[2])

    def curves(self, block: Block, asked: Tensor) -> Tensor:
        """Queries or keys [b, H, t, C] of a block times the vectors of its distances: [b, H, t, n + m - 1]."""
        _, n, m = block.size
        known, where = self.met(block)
        curves = self.room.of(*asked.shape[:3], n + m - 1)
        self.multiplied(asked, known, out=curves[..., where])
        if length(where) < n + m - 1:
            # Beyond the table its edges go on.
            curves[..., : where.start] = curves[..., where.start, None]
            curves[..., where.stop :] = curves[..., where.stop - 1, None]
        return curves

    def met(self, block: Block) -> tuple[slice, slice]:
        """Which vectors a block meets, and where their distances stand among its own, far keys first."""
        _, n, m = block.size
        top, width = self.top(block), n + m - 1
        # A block wholly beyond the table meets its edge alone.
        first, last = (min(max(end, self.table[-1]), self.table[0]) for end in (top, top - width + 1))
        known = slice(self.table[0] - first, self.table[0] - last + 1)
        return known, slice(min(max(0, top - first), width - 1), min(max(0, top - last) + 1, width))

    def by_distance(self, block: Block, values: Tensor) -> tuple[slice, Tensor]:
        """Which vectors a block meets, and the sums of each token's values [b, H, t, u] by these, [b, H, t, R]."""
        known, where = self.met(block)
        if length(known) == 1:
            # The same vector for all keys, whatever the distance.
            return known, values.sum(-1, keepdim=True).to(self.asked.dtype)
        b, heads, n, m = values.shape
        curves = self.room.of(b, heads, n, n + m - 1).zero_()
        skewed(curves, m).copy_(values)
        sums = curves[..., where]
        if length(where) < n + m - 1:
            sums[..., 0] += curves[..., : where.start].sum(-1)
            sums[..., -1] += curves[..., where.stop :].sum(-1)
        return known, sums


class Columns(Curves):
    """Keys times a vector for each distance: a key's curve is a column of the block.

    Of its n + m - 1 distances each of m keys meets n, so keys are multiplied few at a time.
    """

    def __init__(self, term: DotProducts, row: Row, table: range) -> None:
        super().__init__(term, row, table)
        self.turned = Room(self.asked, self.asked.dtype)

    def near(self, block: Block) -> slice | None:
        return None if len(self.table) == 1 else super().near(block)

    def of_keys(self, block: Block) -> Tensor:
        return self.asked[block.batch, :, block.keys]

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        if len(self.table) == 1:
            return self.row_of(block)
        out = self.turned.of(b, self.asked.shape[1], n, m)
        for few, columns in self.few_keys(block, out):
            columns.copy_(skewed(self.curves(few, self.of_keys(few)), n).transpose(-1, -2))
        return out

    def few_keys(self, block: Block, values: Tensor) -> Iterator[tuple[Block, Tensor]]:
        """The block with few keys at a time, and their columns of its values [b, H, n, m]."""
        for keys in cut(block.keys, SIZES.narrowest):
            first = block.keys.start
            yield block._replace(keys=keys), values[..., keys.start - first : keys.stop - first]

    def row_of(self, block: Block) -> Tensor:
        """What all queries share, [b, H, 1, m], of keys that have the same vector for each."""
        known, _ = self.met(block)
        return self.multiplied(self.of_keys(block), known).transpose(-1, -2)

    def far(self, block: Block) -> Part:
        return Part(block.keys, self.row_of(block))

    def take_slopes(self, block: Block, upstream: Tensor, of_asked: Tensor, of_vectors: Tensor) -> None:
        for few, columns in self.few_keys(block, upstream):
            known, sums = self.by_distance(few, columns.transpose(-1, -2))
            of_few = of_asked[few.batch, :, few.keys]
            for row, slopes in zip(of_few, sums, strict=True):
                row.baddbmm_(slopes, self.vectors[:, known].expand(len(row), -1, -1))
            add_to_vectors(of_vectors, known, sums, self.of_keys(few))


def add_to_vectors(of_vectors: Tensor, vectors: slice, products: Tensor, asked: Tensor) -> None:
    """From the gradient [b, H, n, R] of the products of tokens [b, H, n, C] with some of the vectors."""
    sums = of_vectors[:, vectors]
    for slopes, tokens in zip(products, asked, strict=True):
        if len(sums) == 1:
            sums[0].addmm_(slopes.flatten(0, 1).T, tokens.flatten(0, 1))
        else:
            sums.baddbmm_(slopes.transpose(1, 2), tokens)


def skewed(curves: Tensor, m: int) -> Tensor:
    """Curves [b, H, n, n + m - 1] by distance, far keys first, as a view [b, H, n, m]: each row one step further on."""
    batch, head, row, step = curves.stride()
    return curves.as_strided((*curves.shape[:3], m), (batch, head, row + step, step), curves.storage_offset())
