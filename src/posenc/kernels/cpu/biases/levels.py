"""Differences of levels in blocks. Keys before a whole block share a row of numbers, and each query has a shift."""

import math

import torch
from torch import Tensor

from posenc.encoding.biases import Levels
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, ReusedMemory
from posenc.kernels.cpu.plan import AlignedRows


class LevelsInRow(BiasInBlocks):
    """A bias that is a difference of levels. Keys before a block share a row of numbers, and each query has a shift.

    A level grows along the sequence and is stored as two float32 numbers, the rounded level and the rest. Differences
    are then as exact as in float64: rounded in proportion to the bias, never to the level. A bias of -x is off by
    x 2^-23 at most, and its weight has faded by e^-x: an error below 5e-8 of a weight.
    Limit: only keys no later than their query, as under a causal mask.
    """

    name = "levels in a row"

    def __init__(self, bias: Levels, row: AlignedRows) -> None:
        self.row, self.inputs = row, bias.levels()
        self.dtype = torch.promote_types(bias.q.dtype, torch.float32)
        self.room = ReusedMemory(bias.q, self.dtype)
        self.queries, self.keys = map(self.split_precision, self.inputs)

    def split_precision(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Return a level [B, H, T] in the dtype of logits, and the rounding error."""
        level = level.detach()
        high = level.to(self.dtype)
        return high, (level - high).to(self.dtype)

    def block(self, block: Block) -> Tensor:
        queries, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), block.keys)
        high, low = (level[queries].flip(2)[..., None] for level in self.queries)
        key_high, key_low = (level[keys][:, :, None] for level in self.keys)
        values = self.room.tensor(*high.shape[:3], key_high.shape[-1])
        return torch.sub(high, key_high, out=values).add_(low).sub_(key_low)

    def near_keys(self, block: Block) -> slice:
        first, last = block.keys.start, block.keys.stop
        # Under a window some queries do not see these keys, so no row serves all queries.
        has_window = self.row.highest < math.inf
        return slice(first if has_window else min(max(block.rows.start + self.row.offset, first), last), last)

    def far(self, block: Block) -> Part:
        # Differences to the level of the last key are no larger than the bias.
        last = block.batch, slice(None), slice(block.keys.stop - 1, block.keys.stop)
        queries, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), block.keys)
        (high, low), (query_high, query_low) = self.keys, self.queries
        row = (high[last] - high[keys]) + (low[last] - low[keys])
        shift = (query_high[queries] - high[last]) + (query_low[queries] - low[last])
        return Part(block.keys, row[:, :, None], shift.flip(2))

    def take_slopes(self, block: Block, upstream: Tensor, of_queries: Tensor, of_keys: Tensor) -> None:
        of_queries[block.batch, :, block.rows] += upstream.sum(-1).flip(2)
        of_keys[block.batch, :, block.keys] -= upstream.sum(-2)
