"""Dot products with a vector of the distance in blocks, for tokens in a row: what each query asks, as curves.

A block is a product of its queries with the few vectors that it meets, read through a skewed view; far keys share one
number a query.
"""

import math

import torch
from torch import Tensor

from posenc.biases import Products
from posenc.kernels.bias_in_blocks import Block, Part, Room, length
from posenc.kernels.plan import Row


class ProductsInRow:
    """A bias that is a dot product with a vector of the distance, for tokens in a row.

    asked [B, H, T, C] times the vectors [1 or H, R, C] of the distances in `table` (descending) are curves: for each
    query its bias by distance. From one query to the next a key moves by one distance, so a block of the bias is a view
    of the block's curves, each row a step further on.
    """

    name = "products in a row"
    owns = True

    def __init__(self, bias: Products, row: Row, queries: int, keys: int) -> None:
        self.row, self.table = row, row.met(queries, keys, bias.same_beyond)
        self.asked, self.vectors, self.of_keys = given = bias.dot_products(self.table)
        self.inputs: tuple[Tensor, ...] = tuple(tensor for tensor in given if tensor is not None)
        self.room = Room(self.asked, self.asked.dtype)

    def columns(self, block: Block) -> slice:
        return block.keys

    def block(self, block: Block) -> Tensor:
        _, n, m = block.size
        asked = self.asked_of(block)
        near = self.near(block)
        if block.keys.stop <= near.start or near.stop <= block.keys.start:
            part, values = self.far(block), self.room.of(*asked.shape[:3], m)
            assert part.shift is not None
            values.copy_(part.shift[..., None])
            return values if part.bias is None else values.add_(part.bias)
        met, known, where = self.distances_of(block)
        curves = self.room.of(*asked.shape[:3], len(met))
        products = self.product(asked, known)
        curves[..., where] = products
        # Beyond the table its edges go on.
        curves[..., : where.start] = products[..., :1]
        curves[..., where.stop :] = products[..., -1:]
        values = skewed(curves, n, m)
        return values if self.of_keys is None else values.add_(self.of_keys_in(block))

    def asked_of(self, block: Block) -> Tensor:
        return self.asked[block.batch, :, block.rows].flip(2)

    def distances_of(self, block: Block) -> tuple[range, slice, slice]:
        """The distances that a block meets, far keys first; those of the table among them; and where they stand."""
        top = block.rows.stop - 1 - block.keys.start + self.row.offset
        bottom = block.rows.start - (block.keys.stop - 1) + self.row.offset
        # A block wholly beyond the table meets its edge alone.
        first, last = (min(max(end, self.table[-1]), self.table[0]) for end in (top, bottom))
        start, stop = max(0, top - first), max(0, top - last) + 1
        known = slice(self.table[0] - first, self.table[0] - last + 1)
        width = top - bottom + 1
        near = slice(min(start, width - 1), min(stop, width))
        return range(top, bottom - 1, -1), known, near

    def product(self, asked: Tensor, known: slice) -> Tensor:
        vectors = self.vectors[:, known]
        return asked @ (vectors[0] if vectors.shape[0] == 1 else vectors).transpose(-1, -2)

    def of_keys_in(self, block: Block) -> Tensor:
        assert self.of_keys is not None
        return self.of_keys[block.batch, :, None, block.keys]

    def far(self, block: Block) -> Part:
        edge = slice(0, 1) if block.keys.stop <= self.near(block).start else slice(-1, None)
        shift = self.product(self.asked_of(block), edge)[..., 0]
        return Part(block.keys, None if self.of_keys is None else self.of_keys_in(block), shift)

    def near(self, block: Block) -> slice:
        """The keys whose bias is not the same for all: before and behind, edges of the table."""
        start, stop = block.keys.start, block.keys.stop
        if self.row.highest == math.inf:
            start = min(max(start, block.rows.start + self.row.offset - self.table[0] + 1), stop)
        if self.row.lowest == -math.inf:
            stop = max(min(stop, block.rows.stop - 1 + self.row.offset - self.table[-1]), start)
        return slice(start, stop)

    def gradient(self) -> "ProductsGradient":
        return ProductsGradient(self)


class ProductsGradient:
    """Takes the gradient of a block back along the skew: into what is asked, the vectors, and the numbers of keys."""

    def __init__(self, bias: ProductsInRow) -> None:
        self.bias = bias
        self.asked, self.vectors = torch.zeros_like(bias.asked), torch.zeros_like(bias.vectors)
        self.of_keys = None if bias.of_keys is None else torch.zeros_like(bias.of_keys)

    def add(self, block: Block, upstream: Tensor) -> None:
        bias, n, m = self.bias, length(block.rows), length(block.keys)
        met, known, near = bias.distances_of(block)
        asked, vectors = bias.asked_of(block), bias.vectors[:, known]
        if len(bias.table[known]) == 1:
            # The same vector for all keys, whatever the distance.
            curves = upstream.sum(-1, keepdim=True)
        else:
            by_distance = upstream.new_zeros((*upstream.shape[:3], len(met)))
            skewed(by_distance, n, m).copy_(upstream)
            curves = by_distance[..., near]
            curves[..., 0] += by_distance[..., : near.start].sum(-1)
            curves[..., -1] += by_distance[..., near.stop :].sum(-1)
        curves = curves.to(vectors.dtype)
        self.asked[block.batch, :, block.rows] += (curves @ vectors).flip(2)
        of_heads = (curves.transpose(-1, -2) @ asked).sum(0)
        self.vectors[:, known] += of_heads.sum(0, keepdim=True) if vectors.shape[0] == 1 else of_heads
        if self.of_keys is not None:
            self.of_keys[block.batch, :, block.keys] += upstream.sum(-2)

    def total(self) -> tuple[Tensor | None, ...]:
        return (self.asked, self.vectors) if self.of_keys is None else (self.asked, self.vectors, self.of_keys)


def skewed(curves: Tensor, n: int, m: int) -> Tensor:
    """Curves [b, H, n, n + m - 1] by distance, far keys first, as a view [b, H, n, m]: each row one step further on."""
    batch, head, row, step = curves.stride()
    return curves.as_strided((*curves.shape[:2], n, m), (batch, head, row + step, step), curves.storage_offset())
