"""Biases by a count of gates in blocks, for tokens in a row, from the nearest key of a few queries to the farthest.

Once all of these have counted as far as their tables go, farther keys share one number a query, and are not counted.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.biases import Counts
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, Room, length
from posenc.kernels.cpu.plan import Row


class Chunk(NamedTuple):
    """Some keys, and for each query, last first: [b, H, n, m].

    keys   which keys
    gates  how much each key counts, the nearest key first
    below  the entry of the table below its count
    share  how far the count lies from it towards the next
    steps  from this entry to the next
    """

    keys: slice
    gates: Tensor
    below: Tensor
    share: Tensor
    steps: Tensor


class Counted(NamedTuple):
    """What was counted for some queries, last first.

    keys    those that were counted: before them all counts are at the end of the table, and behind them 0
    values  the bias [b, H, n, m] of these, some keys each
    chunks  how it was made, from the nearest keys to the farthest; empty where nobody wants gradients
    """

    keys: slice
    values: list[tuple[slice, Tensor]]
    chunks: list[Chunk]


class CountsInRow(BiasInBlocks):
    """A bias by a count of gates, for tokens in a row: some queries at a time, from the nearest key."""

    name = "counts in a row"

    def __init__(self, bias: Counts, row: Row) -> None:
        self.bias, self.row, self.rate = bias, row, bias.rate
        self.inputs: tuple[Tensor, ...] = bias.q, bias.keys.k, bias.table(bias.q)
        self.q, self.k, self.table = (x.detach() for x in self.inputs)
        self.steps = F.pad(self.table.diff(dim=-1), (0, 1))
        self.keeps = False
        self.held: tuple[tuple[slice, ...], Counted] | None = None
        self.room = Room(self.table, self.table.dtype)

    def counted(self, block: Block) -> Counted:
        """What was counted for the queries of a block, whatever its keys: kept until others are asked for."""
        if self.held is None or self.held[0] != block[:2]:
            self.held = None
            self.held = block[:2], self.count(block)
        return self.held[1]

    def count(self, block: Block) -> Counted:
        table, values, chunks = self.of_queries(self.table, block), [], []
        queries = slice(block.rows.start + self.row.offset, block.rows.stop + self.row.offset)
        # Keys that no query of the block sees, in a window, are not counted.
        lowest = 0 if self.row.highest == math.inf else max(0, queries.start - int(self.row.highest))
        start = stop = max(min(queries.stop, self.k.shape[2]), lowest)
        for chunk in self.chunks(block, queries, slice(lowest, stop)):
            start = chunk.keys.start
            values.append((chunk.keys, table.gather(-1, chunk.below).addcmul_(chunk.share, chunk.steps)))
            if self.keeps:
                chunks.append(chunk)
        return Counted(slice(start, stop), values, chunks)

    def chunks(self, block: Block, queries: slice, whole: slice) -> Iterator[Chunk]:
        """These keys, some at a time, from the nearest to the farthest that are not at the end of the table.

        queries  where the queries of the block stand among the keys
        """
        last, stop = self.table.shape[-1] - 1, whole.stop
        asked, steps = self.asked(block), self.of_queries(self.steps, block)
        counted = steps.new_zeros(*steps.shape[:3], 1)
        while stop > whole.start:
            start = max(whole.start, (stop - 1) // SIZES.narrowest * SIZES.narrowest)
            keys = self.of_keys(block, slice(start, stop)).flip(1)
            gates = torch.bmm(asked, keys.mT).sigmoid_().view(*steps.shape[:3], -1)
            if stop - 1 > queries.start:
                query, key = (torch.arange(size, device=gates.device) for size in gates.shape[2:])
                gates.masked_fill_(queries.stop - query[:, None] < stop - key, 0.0)
            counts = gates.cumsum(-1).add_(counted)
            counted = counts[..., -1:].clone()
            place = counts.clamp_(max=last).flip(-1)
            below = place.long()
            yield Chunk(slice(start, stop), gates, below, place.frac_(), steps.gather(-1, below))
            stop = start
            if float(counted.amin()) >= last:
                return

    def of_queries(self, x: Tensor, block: Block) -> Tensor:
        return x[block.batch, :, block.rows].flip(2)

    def asked(self, block: Block) -> Tensor:
        """The queries [b KV, queries of a key head, D], times the factor of gates."""
        q = self.of_queries(self.q, block).to(self.table.dtype) * self.rate
        return q.reshape(q.shape[0] * self.k.shape[1], -1, q.shape[-1])

    def of_keys(self, block: Block, keys: slice) -> Tensor:
        return self.k[block.batch, :, keys].to(self.table.dtype).flatten(0, 1)

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        out, counted = self.room.of(b, self.table.shape[1], n, m), self.counted(block)
        first, last = self.ends(block)
        before, _, behind = divided(block.keys, counted.keys)
        out[..., before] = last[..., None]
        out[..., behind] = first[..., None]
        for keys, values in counted.values:
            _, here, _ = divided(block.keys, keys)
            _, from_there, _ = divided(keys, block.keys)
            out[..., here] = values[..., from_there]
        return self.bias.spread(out, 1)

    def ends(self, block: Block) -> tuple[Tensor, Tensor]:
        """The first and the last entry of each query's table, [b, H, n] each."""
        table = self.of_queries(self.table, block)
        return table[..., 0], table[..., -1]

    def near(self, block: Block) -> slice:
        keys = self.counted(block).keys
        return slice(*(min(max(end, block.keys.start), block.keys.stop) for end in (keys.start, keys.stop)))

    def far(self, block: Block) -> Part:
        first, last = self.ends(block)
        end = last if block.keys.stop <= self.near(block).start else first
        return Part(block.keys, None, self.bias.spread(end, 1))

    def sums(self) -> tuple[Any, ...]:
        """The gradients in q, k [b KV, keys, D] and the tables; and of open queries what came for them."""
        self.keeps, self.held = True, None
        k = self.k.flatten(0, 1)
        return *(torch.zeros_like(x, dtype=self.table.dtype) for x in (self.q, k, self.table)), []

    def take_slopes(
        self, block: Block, upstream: Tensor, of_q: Tensor, of_k: Tensor, of_table: Tensor, open_rows: list[Any]
    ) -> None:
        """Collects the gradient of the logits of all keys of some queries, before it goes back along their counts."""
        upstream = upstream if self.bias.chosen is None else upstream[:, list(self.bias.chosen)]
        if not open_rows or open_rows[0][:2] != block[:2]:
            self.close(of_q, of_k, of_table, open_rows)
            counted = self.counted(block)
            open_rows[:] = block, counted, upstream.new_zeros(*upstream.shape[:3], length(counted.keys))
        _, counted, collected = open_rows
        before, near, behind = divided(block.keys, counted.keys)
        _, here, _ = divided(counted.keys, block.keys)
        collected[..., here] += upstream[..., near]
        table = of_table[block.batch, :, block.rows]
        table[..., -1] += upstream[..., before].sum(-1).flip(2)
        table[..., 0] += upstream[..., behind].sum(-1).flip(2)

    def close(self, of_q: Tensor, of_k: Tensor, of_table: Tensor, open_rows: list[Any]) -> None:
        """Take back what was collected."""
        if not open_rows:
            return
        (block, counted, collected), KV = open_rows, self.k.shape[1]
        table = torch.zeros_like(self.of_queries(of_table, block))
        asked, slope = self.asked(block), 0.0
        of_asked = torch.zeros_like(asked)
        heads = slice(block.batch.start * KV, block.batch.stop * KV)
        for chunk in reversed(counted.chunks):
            _, here, _ = divided(counted.keys, chunk.keys)
            upstream = collected[..., here]
            upper = upstream * chunk.share
            table.scatter_add_(-1, chunk.below, upstream - upper)
            table.scatter_add_(-1, (chunk.below + 1).clamp_(max=table.shape[-1] - 1), upper)
            # A gate counts for its own key and for all that are farther.
            counts = (upstream * chunk.steps).cumsum(-1).add_(slope)
            slope = counts[..., -1:].clone()
            gates = chunk.gates.flip(-1)
            logits = counts.mul_(gates).mul_(gates.neg_().add_(1)).view(*asked.shape[:2], -1)
            of_asked.baddbmm_(logits, self.of_keys(block, chunk.keys))
            of_k[heads, chunk.keys].baddbmm_(logits.mT, asked)
        of_table[block.batch, :, block.rows] += table.flip(2)
        of_q[block.batch, :, block.rows] += of_asked.mul_(self.rate).view(*table.shape[:3], -1).flip(2)

    def total(self, sums: tuple[Any, ...]) -> tuple[Tensor, ...]:
        self.close(*sums)
        return tuple(of.view(x.shape).to(x.dtype) for of, x in zip(sums[:3], self.inputs, strict=True))


def divided(keys: slice, others: slice) -> tuple[slice, slice, slice]:
    """Keys in three, each as it stands among them: those before others, these, and those behind them."""
    start, stop = (min(max(end, keys.start), keys.stop) - keys.start for end in (others.start, others.stop))
    return slice(0, start), slice(start, stop), slice(stop, length(keys))
