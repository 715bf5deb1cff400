"""Dot products with a vector of the distance in blocks, for contiguous tokens: fewer products than pairs.

The products of a token with the vectors of distances are a curve, and a block is a skewed view of its tokens' curves.
Distances that share a vector are multiplied each: a lookup would take longer.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from posenc.encoding.biases import DotProducts, Products
from posenc.kernels.block_sizes import SIZES, cut
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, ReusedMemory, length
from posenc.kernels.cpu.plan import AlignedRows


def products_in_row(bias: Products, row: AlignedRows, queries: int, keys: int) -> "list[Curves]":
    """Return the terms of a bias in blocks, for contiguous queries and keys."""
    table = row.distances(queries, keys, bias.same_beyond)
    return [(Columns if term.of_keys else Curves)(term, row, table) for term in bias.dot_products(table)]


class Curves(BiasInBlocks):
    """Curves of the bias by distance: queries times the vectors of the distances in `table`.

    `table` descends. The distance to a key changes by one from query to query, so a block is a view of its curves,
    and each row begins one step further on.
    """

    name = "products in a row"

    def __init__(self, term: DotProducts, row: AlignedRows, table: range) -> None:
        self.factors, self.vectors = term.factors, term.vectors
        self.row, self.table = row, table[: self.vectors.shape[1]]  # one distance if all share one vector
        self.inputs: tuple[Tensor, ...] = (self.factors, self.vectors)
        self.room = ReusedMemory(self.factors, self.factors.dtype)

    def near_keys(self, block: Block) -> slice | None:
        return self.between_edges(block)

    def far(self, block: Block) -> Part:
        vectors, _ = self.vectors_of(block)
        return Part(block.keys, None, self.dot_products_with(self.last_first(block), vectors)[..., 0])

    def take_slopes(self, block: Block, upstream: Tensor, of_factors: Tensor, of_vectors: Tensor) -> None:
        vectors, sums = self.by_distance(block, upstream)
        of_factors[block.batch, :, block.rows] += (sums @ self.vectors[:, vectors]).flip(2)
        add_to_vectors(of_vectors, vectors, sums, self.last_first(block))

    def between_edges(self, block: Block) -> slice:
        """Return the keys between those at the two edges of the table, which share one vector each."""
        start, stop = block.keys.start, block.keys.stop
        if self.row.highest == math.inf:
            start = min(max(start, block.rows.start + self.row.offset - self.table[0] + 1), stop)
        if self.row.lowest == -math.inf:
            stop = max(min(stop, block.rows.stop - 1 + self.row.offset - self.table[-1]), start)
        return slice(start, stop)

    def top(self, block: Block) -> int:
        """Return the distance from the last query of a block to its first key."""
        return block.rows.stop - 1 - block.keys.start + self.row.offset

    def last_first(self, block: Block) -> Tensor:
        """Return the factors of a block's queries, last query first."""
        return self.factors[block.batch, :, block.rows].flip(2)

    def dot_products_with(self, tokens: Tensor, vectors: slice, target: Tensor | None = None) -> Tensor:
        """Return tokens [b, H, n, C] times some of the vectors: [b, H, n, R]."""
        return torch.matmul(tokens, self.vectors[:, vectors].transpose(-1, -2), out=target)

    def block(self, block: Block) -> Tensor:
        return skewed_view(self.curves(block, self.last_first(block)), block.size[2])

    def curves(self, block: Block, tokens: Tensor) -> Tensor:
        """Return tokens [b, H, t, C] times the vectors of a block's distances. The curves are [b, H, t, n + m - 1]."""
        _, n, m = block.size
        vectors, where = self.vectors_of(block)
        curves = self.room.tensor(*tokens.shape[:3], n + m - 1)
        self.dot_products_with(tokens, vectors, target=curves[..., where])
        if length(where) < n + m - 1:
            # Beyond the table its edge values continue.
            curves[..., : where.start] = curves[..., where.start, None]
            curves[..., where.stop :] = curves[..., where.stop - 1, None]
        return curves

    def vectors_of(self, block: Block) -> tuple[slice, slice]:
        """Return the vectors that a block reads, and their slice of its distances. Far keys come first."""
        _, n, m = block.size
        top, width = self.top(block), n + m - 1
        # A block beyond the table reads its edge alone.
        first, last = (min(max(end, self.table[-1]), self.table[0]) for end in (top, top - width + 1))
        vectors = slice(self.table[0] - first, self.table[0] - last + 1)
        return vectors, slice(min(max(0, top - first), width - 1), min(max(0, top - last) + 1, width))

    def by_distance(self, block: Block, values: Tensor) -> tuple[slice, Tensor]:
        """Return the vectors of a block, and each token's sums by vector [b, H, t, R]. Values are [b, H, t, u]."""
        vectors, where = self.vectors_of(block)
        if length(vectors) == 1:
            # All keys share one vector.
            return vectors, values.sum(-1, keepdim=True).to(self.factors.dtype)
        b, heads, n, m = values.shape
        curves = self.room.tensor(b, heads, n, n + m - 1).zero_()
        skewed_view(curves, m).copy_(values)
        sums = curves[..., where]
        if length(where) < n + m - 1:
            sums[..., 0] += curves[..., : where.start].sum(-1)
            sums[..., -1] += curves[..., where.stop :].sum(-1)
        return vectors, sums


class Columns(Curves):
    """Keys times a vector for each distance: a key's curve is a column of the block.

    Each of m keys needs n of the n + m - 1 distances, so keys are multiplied a few at a time.
    """

    def __init__(self, term: DotProducts, row: AlignedRows, table: range) -> None:
        super().__init__(term, row, table)
        self.columns_memory = ReusedMemory(self.factors, self.factors.dtype)

    def near_keys(self, block: Block) -> slice | None:
        return None if len(self.table) == 1 else super().near_keys(block)

    def of_keys(self, block: Block) -> Tensor:
        return self.factors[block.batch, :, block.keys]

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        if len(self.table) == 1:
            return self.shared_row(block)
        values = self.columns_memory.tensor(b, self.factors.shape[1], n, m)
        for part, columns in self.key_blocks(block, values):
            columns.copy_(skewed_view(self.curves(part, self.of_keys(part)), n).transpose(-1, -2))
        return values

    def key_blocks(self, block: Block, values: Tensor) -> Iterator[tuple[Block, Tensor]]:
        """Yield blocks of fewer keys, and their columns of the values [b, H, n, m]."""
        for keys in cut(block.keys, SIZES.narrowest):
            first = block.keys.start
            yield block._replace(keys=keys), values[..., keys.start - first : keys.stop - first]

    def shared_row(self, block: Block) -> Tensor:
        """Return the row [b, H, 1, m] of all queries, if they share one vector."""
        vectors, _ = self.vectors_of(block)
        return self.dot_products_with(self.of_keys(block), vectors).transpose(-1, -2)

    def far(self, block: Block) -> Part:
        return Part(block.keys, self.shared_row(block))

    def take_slopes(self, block: Block, upstream: Tensor, of_factors: Tensor, of_vectors: Tensor) -> None:
        for part, columns in self.key_blocks(block, upstream):
            vectors, sums = self.by_distance(part, columns.transpose(-1, -2))
            of_part = of_factors[part.batch, :, part.keys]
            for row, slopes in zip(of_part, sums, strict=True):
                row.baddbmm_(slopes, self.vectors[:, vectors].expand(len(row), -1, -1))
            add_to_vectors(of_vectors, vectors, sums, self.of_keys(part))


def add_to_vectors(of_vectors: Tensor, vectors: slice, products: Tensor, factors: Tensor) -> None:
    """Add the gradient in some vectors: that in their products [b, H, n, R] times `factors` [b, H, n, C]."""
    sums = of_vectors[:, vectors]
    for slopes, row_tokens in zip(products, factors, strict=True):
        if len(sums) == 1:
            sums[0].addmm_(slopes.flatten(0, 1).T, row_tokens.flatten(0, 1))
        else:
            sums.baddbmm_(slopes.transpose(1, 2), row_tokens)


def skewed_view(curves: Tensor, m: int) -> Tensor:
    """Return curves [b, H, n, n + m - 1] as a view [b, H, n, m]. Each row begins one step further on."""
    batch, head, row, step = curves.stride()
    return curves.as_strided((*curves.shape[:3], m), (batch, head, row + step, step), curves.storage_offset())
