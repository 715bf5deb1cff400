"""Dot products with a vector of the distance in blocks, for tokens in a row: fewer products than there are pairs.

Where each distance has a vector of its own, the products of a block's queries are curves, and the block is a skewed
view of them. Where distances share vectors, a token is multiplied with each once, and each pair looks its product up.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.encoding.biases import DotProducts, Products
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, Room, length
from posenc.kernels.cpu.plan import Row


def products_in_row(bias: Products, row: Row, queries: int, keys: int) -> "list[ProductsInRow]":
    """The terms of a bias, for so many queries and keys in a row."""
    table = row.met(queries, keys, bias.same_beyond)
    forms: list[ProductsInRow] = []
    for term in bias.dot_products(table):
        if term.of_keys:
            forms.append(KeysLookUp(term, row, table, queries, keys))
        elif term.rows is not None:
            forms.append(QueriesLookUp(term, row, table, queries, keys))
        else:
            forms.append(Curves(term, row, table))
    return forms


class ProductsInRow(BiasInBlocks):
    """Tokens times the vectors of the distances in `table` (descending)."""

    name = "products in a row"
    met: Callable[..., tuple[slice, Any]]
    """(block) -> which vectors it meets, and where its distances, far keys first, stand among these."""
    by_distance: Callable[..., tuple[slice, Tensor]]
    """(block, values [b, H, t, u]) -> which vectors, and the sums of each token's values by these, [b, H, t, R]."""

    def __init__(self, term: DotProducts, row: Row, table: range) -> None:
        self.row, self.table = row, table
        self.asked, self.vectors = term.asked, term.vectors
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


class Curves(ProductsInRow):
    """A vector for each distance: the products of a query are its bias by distance, a curve.

    From one query to the next a key moves by one distance, so a block of the bias is a view of the block's curves, each
    row a step further on.
    """

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        known, where = self.met(block)
        curves = self.room.of(b, self.asked.shape[1], n, n + m - 1)
        self.multiplied(self.last_first(block), known, out=curves[..., where])
        # Beyond the table its edges go on.
        curves[..., : where.start] = curves[..., where.start, None]
        curves[..., where.stop :] = curves[..., where.stop - 1, None]
        return skewed(curves, m)

    def met(self, block: Block) -> tuple[slice, slice]:
        _, n, m = block.size
        top, width = self.top(block), n + m - 1
        # A block wholly beyond the table meets its edge alone.
        first, last = (min(max(end, self.table[-1]), self.table[0]) for end in (top, top - width + 1))
        known = slice(self.table[0] - first, self.table[0] - last + 1)
        return known, slice(min(max(0, top - first), width - 1), min(max(0, top - last) + 1, width))

    def by_distance(self, block: Block, values: Tensor) -> tuple[slice, Tensor]:
        known, where = self.met(block)
        if length(known) == 1:
            # The same vector for all keys, whatever the distance.
            return known, values.sum(-1, keepdim=True).to(self.asked.dtype)
        b, heads, n, m = values.shape
        curves = self.room.of(b, heads, n, n + m - 1).zero_()
        skewed(curves, m).copy_(values)
        sums = curves[..., where]
        sums[..., 0] += curves[..., : where.start].sum(-1)
        sums[..., -1] += curves[..., where.stop :].sum(-1)
        return known, sums


class LooksUp(ProductsInRow):
    """Distances that share vectors: a pair's distance tells which of its token's products is the pair's."""

    def __init__(self, term: DotProducts, row: Row, table: range, queries: int, keys: int) -> None:
        super().__init__(term, row, table)
        self.products = Room(self.asked, self.asked.dtype)
        # For every distance that there is, far keys first: beyond the table its edges go on.
        self.farthest = row.offset + queries - 1
        place = torch.arange(queries + keys - 1, device=self.asked.device) + (table[0] - self.farthest)
        place = place.clamp(0, len(table) - 1)
        self.rows = place if term.rows is None else term.rows[place]
        self.numbers: list[int] = self.rows.tolist()

    def near(self, block: Block) -> slice | None:
        return None if self.vectors.shape[1] == 1 else super().near(block)

    def met(self, block: Block) -> tuple[slice, Tensor]:
        _, n, m = block.size
        first = self.farthest - self.top(block)
        last = first + n + m - 1
        lowest, highest = min(self.numbers[first:last]), max(self.numbers[first:last])
        return slice(lowest, highest + 1), self.rows[first:last] - lowest

    def looked_up(self, block: Block, asked: Tensor, out: Tensor) -> Tensor:
        """The products of a block's tokens [b, H, t, C] with the vector of each of their pairs: [b, H, t, u]."""
        known, rows = self.met(block)
        products = self.multiplied(asked, known, self.products.of(*asked.shape[:3], length(known)))
        if length(known) == 1:
            return out.copy_(products)
        return torch.gather(products, -1, by_pair(rows, out), out=out)

    def by_distance(self, block: Block, values: Tensor) -> tuple[slice, Tensor]:
        known, rows = self.met(block)
        values = values.to(self.asked.dtype)
        if length(known) == 1:
            return known, values.sum(-1, keepdim=True)
        sums = self.products.of(*values.shape[:3], length(known)).zero_()
        return known, sums.scatter_add_(-1, by_pair(rows, values), values)


class QueriesLookUp(LooksUp):
    """Queries times vectors that distances share."""

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        return self.looked_up(block, self.last_first(block), self.room.of(b, self.asked.shape[1], n, m))


class KeysLookUp(LooksUp):
    """Keys times vectors that distances share: what a key looks up is a column of the block."""

    def __init__(self, term: DotProducts, row: Row, table: range, queries: int, keys: int) -> None:
        super().__init__(term, row, table, queries, keys)
        self.turned = Room(self.asked, self.asked.dtype)

    def of_keys(self, block: Block) -> Tensor:
        return self.asked[block.batch, :, block.keys]

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        if self.vectors.shape[1] == 1:
            return self.row_of(block)
        turned = self.turned.of(b, self.asked.shape[1], m, n)
        out = self.room.of(b, self.asked.shape[1], n, m)
        return out.copy_(self.looked_up(block, self.of_keys(block), turned).transpose(-1, -2))

    def row_of(self, block: Block) -> Tensor:
        """What all queries share, [b, H, 1, m], of keys that have the same vector for each."""
        known, _ = self.met(block)
        return self.multiplied(self.of_keys(block), known).transpose(-1, -2)

    def far(self, block: Block) -> Part:
        return Part(block.keys, self.row_of(block))

    def take_slopes(self, block: Block, upstream: Tensor, of_asked: Tensor, of_vectors: Tensor) -> None:
        known, sums = self.by_distance(block, upstream.transpose(-1, -2))
        of_asked[block.batch, :, block.keys] += sums @ self.vectors[:, known]
        add_to_vectors(of_vectors, known, sums, self.of_keys(block))


def add_to_vectors(of_vectors: Tensor, vectors: slice, products: Tensor, asked: Tensor) -> None:
    """From the gradient [b, H, n, R] of the products of tokens [b, H, n, C] with some of the vectors."""
    slopes = (products.transpose(-1, -2) @ asked).sum(0)
    of_vectors[:, vectors] += slopes.sum(0, keepdim=True) if of_vectors.shape[0] == 1 else slopes


def skewed(curves: Tensor, m: int) -> Tensor:
    """Curves [b, H, n, n + m - 1] by distance, far keys first, as a view [b, H, n, m]: each row one step further on."""
    batch, head, row, step = curves.stride()
    return curves.as_strided((*curves.shape[:3], m), (batch, head, row + step, step), curves.storage_offset())


def by_pair(rows: Tensor, like: Tensor) -> Tensor:
    """Rows by distance [t + u - 1], far keys first, as those of pairs [b, H, t, u]: token r and s stand at r + s."""
    _, _, t, u = like.shape
    return rows.as_strided((t, u), (1, 1)).expand(like.shape)
