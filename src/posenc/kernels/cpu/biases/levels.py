"""Differences of levels in blocks: for keys before a whole block a row of numbers, and a shift of each query."""

import math

import torch
from torch import Tensor

from posenc.encoding.biases import Levels
from posenc.kernels.cpu.bias_in_blocks import Block, Part, Room, WholeBlocks, length
from posenc.kernels.cpu.biases.pairs import PairsInBlocks
from posenc.kernels.cpu.plan import Row


class LevelsInRow(WholeBlocks):
    """A bias that is a difference of levels: for keys before a whole block a row of numbers, and a shift of each query.

    A level grows along the sequence and is kept as two float32 numbers, what one holds of it and the rest. Their
    differences are then as exact as if they were taken in float64: rounded in proportion to the bias, never to the
    level. A bias of -x is off by x 2^-23 at most, where its weight has faded by e^-x: by less than 5e-8 of a weight.
    Keys after a query are left to the closure, where they are seen.
    """

    name = "levels in a row"

    def __init__(self, bias: Levels, rest: PairsInBlocks, row: Row) -> None:
        self.rest, self.row = rest, row
        self.of_queries, self.of_keys = of_queries, of_keys = bias.levels()
        self.inputs: tuple[Tensor, ...] = (*rest.inputs, of_queries, of_keys)
        self.dtype = torch.promote_types(rest.inputs[0].dtype, torch.float32)
        self.room = Room(of_queries, self.dtype)
        self.queries, self.keys = self.in_two(of_queries), self.in_two(of_keys)

    def in_two(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """A level [B, H, T] in the dtype of logits, and what that leaves of it."""
        level = level.detach()
        most = level.to(self.dtype)
        return most, (level - most).to(self.dtype)

    def difference(self, block: Block) -> Tensor:
        """The levels of a block's queries minus those of its keys, [b, H, n, m]."""
        queries, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), block.keys)
        most, rest = (level[queries].flip(2)[..., None] for level in self.queries)
        key_most, key_rest = (level[keys][:, :, None] for level in self.keys)
        out = self.room.of(*most.shape[:3], key_most.shape[-1])
        return torch.sub(most, key_most, out=out).add_(rest).sub_(key_rest)

    def block(self, block: Block) -> Tensor:
        known, rest = (block._replace(keys=keys) for keys in divided(block.keys, self.known(block)))
        if not length(rest.keys):
            return self.difference(block)
        if not length(known.keys):
            return self.rest.block(block)
        return torch.cat((self.difference(known), self.rest.block(rest)), -1)

    def known(self, block: Block) -> int:
        """Where the keys of a block end whose bias is the difference of levels for every query that sees them."""
        return block.keys.stop if self.row.lowest >= 0 else self.before(block)

    def before(self, block: Block) -> int:
        """Where the keys of a block end that come before all its queries."""
        return min(max(block.rows.start + self.row.offset, block.keys.start), block.keys.stop)

    def near(self, block: Block) -> slice:
        # Keys that some of the queries do not see, under a window, have no row of their own.
        return slice(block.keys.start if self.row.highest < math.inf else self.before(block), block.keys.stop)

    def far(self, block: Block) -> Part:
        # Both are taken from the level of the last key: then they are no larger than the bias.
        last = block.batch, slice(None), slice(block.keys.stop - 1, block.keys.stop)
        queries, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), block.keys)
        (most, rest), (query_most, query_rest) = self.keys, self.queries
        row = (most[last] - most[keys]) + (rest[last] - rest[keys])
        shift = (query_most[queries] - most[last]) + (query_rest[queries] - rest[last])
        return Part(block.keys, row[:, :, None], shift.flip(2))

    def gradient(self) -> "LevelsGradient":
        return LevelsGradient(self)


class LevelsGradient:
    """Adds up the rows and columns of a block; what the closure said goes back through it."""

    def __init__(self, bias: LevelsInRow) -> None:
        self.bias, self.rest = bias, bias.rest.gradient()
        self.of_queries, self.of_keys = torch.zeros_like(bias.of_queries), torch.zeros_like(bias.of_keys)

    def add(self, block: Block, upstream: Tensor) -> None:
        known, rest = divided(block.keys, self.bias.known(block))
        if length(known):
            here = upstream[..., : length(known)]
            self.of_queries[block.batch, :, block.rows] += here.sum(-1).flip(2)
            self.of_keys[block.batch, :, known] -= here.sum(-2)
        if length(rest):
            self.rest.add(block._replace(keys=rest), upstream[..., length(known) :])

    def total(self) -> tuple[Tensor | None, ...]:
        return (*self.rest.total(), self.of_queries, self.of_keys)


def divided(keys: slice, at: int) -> tuple[slice, slice]:
    """A slice in two."""
    return slice(keys.start, at), slice(at, keys.stop)
