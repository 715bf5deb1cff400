"""Differences of levels in blocks: for keys before a whole block a row of numbers, and a shift of each query."""

import math

import torch
from torch import Tensor

from posenc.encoding.biases import Levels
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, Room
from posenc.kernels.cpu.plan import Row


class LevelsInRow(BiasInBlocks):
    """A bias that is a difference of levels: for keys before a whole block a row of numbers, and a shift of each query.

    A level grows along the sequence and is kept as two float32 numbers, what one holds of it and the rest. Their
    differences are then as exact as if they were taken in float64: rounded in proportion to the bias, never to the
    level. A bias of -x is off by x 2^-23 at most, where its weight has faded by e^-x: by less than 5e-8 of a weight.
    Limit: only keys no later than their query, as a causal mask leaves them.
    """

    name = "levels in a row"

    def __init__(self, bias: Levels, row: Row) -> None:
        self.row, self.inputs = row, bias.levels()
        self.dtype = torch.promote_types(bias.q.dtype, torch.float32)
        self.room = Room(bias.q, self.dtype)
        self.queries, self.keys = map(self.in_two, self.inputs)

    def in_two(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """A level [B, H, T] in the dtype of logits, and what that leaves of it."""
        level = level.detach()
        most = level.to(self.dtype)
        return most, (level - most).to(self.dtype)

    def block(self, block: Block) -> Tensor:
        queries, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), block.keys)
        most, rest = (level[queries].flip(2)[..., None] for level in self.queries)
        key_most, key_rest = (level[keys][:, :, None] for level in self.keys)
        out = self.room.of(*most.shape[:3], key_most.shape[-1])
        return torch.sub(most, key_most, out=out).add_(rest).sub_(key_rest)

    def near(self, block: Block) -> slice:
        first, last = block.keys.start, block.keys.stop
        # Keys that some of the queries do not see, under a window, have no row of their own.
        windowed = self.row.highest < math.inf
        return slice(first if windowed else min(max(block.rows.start + self.row.offset, first), last), last)

    def far(self, block: Block) -> Part:
        # Both are taken from the level of the last key: then they are no larger than the bias.
        last = block.batch, slice(None), slice(block.keys.stop - 1, block.keys.stop)
        queries, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), block.keys)
        (most, rest), (query_most, query_rest) = self.keys, self.queries
        row = (most[last] - most[keys]) + (rest[last] - rest[keys])
        shift = (query_most[queries] - most[last]) + (query_rest[queries] - rest[last])
        return Part(block.keys, row[:, :, None], shift.flip(2))

    def take_slopes(self, block: Block, upstream: Tensor, of_queries: Tensor, of_keys: Tensor) -> None:
        of_queries[block.batch, :, block.rows] += upstream.sum(-1).flip(2)
        of_keys[block.batch, :, block.keys] -= upstream.sum(-2)
