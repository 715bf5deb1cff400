"""Biases by a sum of gates in blocks, for contiguous tokens, from the nearest keys to the farthest.

Once all queries of a block have reached the end of their tables, farther keys share one number for each query.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.biases import Counts
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, ReusedMemory, length
from posenc.kernels.cpu.plan import AlignedRows


class KeyChunk(NamedTuple):
    """Gates of some keys, for each query, last first: [b, H, n, m].

    keys   the keys
    gates  gate of each key, the nearest key first
    entry  table entry below the sum of gates
    share  fraction of the way to the next entry
    steps  difference of the next entry
    """

    keys: slice
    gates: Tensor
    entry: Tensor
    share: Tensor
    steps: Tensor


class CountedRows(NamedTuple):
    """The counts of some queries, last first.

    keys    the counted keys: the sum is at the end of the table before them, and 0 behind them
    values  the bias [b, H, n, m] of ranges of keys
    chunks  the gates, from the nearest keys to the farthest; empty without gradients
    """

    keys: slice
    values: list[tuple[slice, Tensor]]
    chunks: list[KeyChunk]


class CountsInRow(BiasInBlocks):
    """A bias by a sum of gates, for contiguous tokens. It reads a block of queries at a time, from the nearest key."""

    name = "counts in a row"

    def __init__(self, bias: Counts, row: AlignedRows) -> None:
        self.bias, self.row, self.rate = bias, row, bias.rate
        self.inputs: tuple[Tensor, ...] = bias.q, bias.keys.k, bias.table(bias.q)
        self.q, self.k, self.table = (x.detach() for x in self.inputs)
        self.steps = F.pad(self.table.diff(dim=-1), (0, 1))
        self.keeps = False
        self.last_count: tuple[tuple[slice, ...], CountedRows] | None = None
        self.room = ReusedMemory(self.table, self.table.dtype)

    def counts_of_rows(self, block: Block) -> CountedRows:
        """Return the counts of the queries of a block, cached until the next block of queries."""
        if self.last_count is None or self.last_count[0] != block[:2]:
            self.last_count = None
            self.last_count = block[:2], self.count(block)
        return self.last_count[1]

    def count(self, block: Block) -> CountedRows:
        table, values, chunks = self.of_queries(self.table, block), [], []
        queries = slice(block.rows.start + self.row.offset, block.rows.stop + self.row.offset)
        # Keys outside the window of all queries are not counted.
        lowest = 0 if self.row.highest == math.inf else max(0, queries.start - int(self.row.highest))
        start = stop = max(min(queries.stop, self.k.shape[2]), lowest)
        for chunk in self.chunks(block, queries, slice(lowest, stop)):
            start = chunk.keys.start
            values.append((chunk.keys, table.gather(-1, chunk.entry).addcmul_(chunk.share, chunk.steps)))
            if self.keeps:
                chunks.append(chunk)
        return CountedRows(slice(start, stop), values, chunks)

    def chunks(self, block: Block, queries: slice, whole: slice) -> Iterator[KeyChunk]:
        """Yield gates of these keys, nearest first, until all sums reach the table's end.

        queries  indices of the block's queries among the keys
        """
        last, stop = self.table.shape[-1] - 1, whole.stop
        queries_in_heads, steps = self.scaled_queries(block), self.of_queries(self.steps, block)
        count_so_far = steps.new_zeros(*steps.shape[:3], 1)
        while stop > whole.start:
            start = max(whole.start, (stop - 1) // SIZES.narrowest * SIZES.narrowest)
            keys = self.of_keys(block, slice(start, stop)).flip(1)
            gates = torch.bmm(queries_in_heads, keys.mT).sigmoid_().view(*steps.shape[:3], -1)
            if stop - 1 > queries.start:
                query, key = (torch.arange(size, device=gates.device) for size in gates.shape[2:])
                gates.masked_fill_(queries.stop - query[:, None] < stop - key, 0.0)
            counts = gates.cumsum(-1).add_(count_so_far)
            count_so_far = counts[..., -1:].clone()
            place = counts.clamp_(max=last).flip(-1)
            entry = place.long()
            yield KeyChunk(slice(start, stop), gates, entry, place.frac_(), steps.gather(-1, entry))
            stop = start
            if float(count_so_far.amin()) >= last:
                return

    def of_queries(self, x: Tensor, block: Block) -> Tensor:
        return x[block.batch, :, block.rows].flip(2)

    def scaled_queries(self, block: Block) -> Tensor:
        """Return the queries [b KV, queries of a key head, D] times the rate of the gates."""
        q = self.of_queries(self.q, block).to(self.table.dtype) * self.rate
        return q.reshape(q.shape[0] * self.k.shape[1], -1, q.shape[-1])

    def of_keys(self, block: Block, keys: slice) -> Tensor:
        return self.k[block.batch, :, keys].to(self.table.dtype).flatten(0, 1)

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        bias, counts = self.room.tensor(b, self.table.shape[1], n, m), self.counts_of_rows(block)
        first, last = self.end_entries(block)
        farther, _, later = split_keys(block.keys, counts.keys)
        bias[..., farther] = last[..., None]
        bias[..., later] = first[..., None]
        for keys, values in counts.values:
            _, columns, _ = split_keys(block.keys, keys)
            _, source, _ = split_keys(keys, block.keys)
            bias[..., columns] = values[..., source]
        return self.bias.to_model_heads(bias, 1)

    def end_entries(self, block: Block) -> tuple[Tensor, Tensor]:
        """Return the first and the last entry of each query's table, [b, H, n] each."""
        table = self.of_queries(self.table, block)
        return table[..., 0], table[..., -1]

    def near_keys(self, block: Block) -> slice:
        keys = self.counts_of_rows(block).keys
        return slice(*(min(max(end, block.keys.start), block.keys.stop) for end in (keys.start, keys.stop)))

    def far(self, block: Block) -> Part:
        first, last = self.end_entries(block)
        end = last if block.keys.stop <= self.near_keys(block).start else first
        return Part(block.keys, None, self.bias.to_model_heads(end, 1))

    def sums(self) -> tuple[Any, ...]:
        """Return accumulators for q, k [b KV, keys, D] and the tables. The last item lists the open query block."""
        self.keeps, self.last_count = True, None
        k = self.k.flatten(0, 1)
        return *(torch.zeros_like(x, dtype=self.table.dtype) for x in (self.q, k, self.table)), []

    def take_slopes(
        self, block: Block, upstream: Tensor, of_q: Tensor, of_k: Tensor, of_table: Tensor, open_rows: list[Any]
    ) -> None:
        """Collect the gradient over all keys of some queries, before it goes back through their sums."""
        upstream = upstream if self.bias.head_numbers is None else upstream[:, list(self.bias.head_numbers)]
        if not open_rows or open_rows[0][:2] != block[:2]:
            self.close(of_q, of_k, of_table, open_rows)
            counts = self.counts_of_rows(block)
            open_rows[:] = block, counts, upstream.new_zeros(*upstream.shape[:3], length(counts.keys))
        _, counts, gradient = open_rows
        farther, columns, later = split_keys(block.keys, counts.keys)
        _, target, _ = split_keys(counts.keys, block.keys)
        gradient[..., target] += upstream[..., columns]
        table = of_table[block.batch, :, block.rows]
        table[..., -1] += upstream[..., farther].sum(-1).flip(2)
        table[..., 0] += upstream[..., later].sum(-1).flip(2)

    def close(self, of_q: Tensor, of_k: Tensor, of_table: Tensor, open_rows: list[Any]) -> None:
        """Propagate the collected gradient to q, k and the tables."""
        if not open_rows:
            return
        (block, counted_rows, gradient), KV = open_rows, self.k.shape[1]
        table = torch.zeros_like(self.of_queries(of_table, block))
        queries, slope = self.scaled_queries(block), 0.0
        of_scaled_queries = torch.zeros_like(queries)
        heads = slice(block.batch.start * KV, block.batch.stop * KV)
        for chunk in reversed(counted_rows.chunks):
            _, columns, _ = split_keys(counted_rows.keys, chunk.keys)
            upstream = gradient[..., columns]
            upper = upstream * chunk.share
            table.scatter_add_(-1, chunk.entry, upstream - upper)
            table.scatter_add_(-1, (chunk.entry + 1).clamp_(max=table.shape[-1] - 1), upper)
            # A gate enters the sums of its own key and all farther ones.
            slopes_of_counts = (upstream * chunk.steps).cumsum(-1).add_(slope)
            slope = slopes_of_counts[..., -1:].clone()
            gates = chunk.gates.flip(-1)
            logits = slopes_of_counts.mul_(gates).mul_(gates.neg_().add_(1)).view(*queries.shape[:2], -1)
            of_scaled_queries.baddbmm_(logits, self.of_keys(block, chunk.keys))
            of_k[heads, chunk.keys].baddbmm_(logits.mT, queries)
        of_table[block.batch, :, block.rows] += table.flip(2)
        of_q[block.batch, :, block.rows] += of_scaled_queries.mul_(self.rate).view(*table.shape[:3], -1).flip(2)

    def total(self, sums: tuple[Any, ...]) -> tuple[Tensor, ...]:
        self.close(*sums)
        return tuple(slope.view(x.shape).to(x.dtype) for slope, x in zip(sums[:3], self.inputs, strict=True))


def split_keys(keys: slice, middle: slice) -> tuple[slice, slice, slice]:
    """Split keys, as indices among themselves, into those before the middle, in it, and behind it."""
    start, stop = (min(max(end, keys.start), keys.stop) - keys.start for end in (middle.start, middle.stop))
    return slice(0, start), slice(start, stop), slice(stop, length(keys))
