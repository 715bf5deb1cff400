"""The plan of blocks: which queries meet which keys, from static facts of positions, or from their values.

For contiguous tokens visibility depends on the distance alone, and a block covers what its queries see. Padding at the
sides and packing leave stretches of contiguous tokens, each with its own blocks. Other tokens are masked by pair within
their block.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu.bias_in_blocks import Block
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import may_be_read

MIN_TOKENS_PER_STRETCH = 3
"""Minimum average length of a stretch; for shorter ones, a block over several with masked pairs is faster."""


class Run(NamedTuple):
    """Contiguous queries and the contiguous keys that they may see: one document without padding.

    batch   the rows of the batch, a slice
    rows    the queries, a slice
    keys    the keys, a slice
    offset  query i comes i - j + offset after key j: in order, and in coordinates if they matter
    order   key j has the order j + order; None if unknown
    """

    batch: slice
    rows: slice
    keys: slice
    offset: int
    order: int | None


class Stretch(NamedTuple):
    """Contiguous tokens from index `start` to `stop`. Token t has order t + order and coordinate t + coord."""

    start: int
    stop: int
    order: int
    coord: int


@dataclass(frozen=True)
class AlignedRows:
    """Contiguous queries and keys, known without reading tensors. Query i comes i - j + offset after key j.

    offset   first query coordinate minus first key coordinate (positions)
    lowest   smallest visible distance: 0 under a causal mask, else -inf
    highest  largest visible distance, in a window; else inf
    """

    offset: int
    lowest: float
    highest: float

    @classmethod
    def of(cls, at: Positions, keys_at: Positions, mask: Mask) -> "AlignedRows | None":
        """Return the rows; None for other tokens, or if the mask is more than a range of distances."""
        if at.start is None or keys_at.start is None or mask.prefix:
            return None
        return cls(at.start - keys_at.start, *in_sight(mask))

    def distances(self, queries: int, keys: int, reach: int | None) -> range:
        """Return the visible distances of these tokens, far keys first, clipped to the reach."""
        lowest, highest = max(self.offset - keys + 1, self.lowest), min(self.offset + queries - 1, self.highest)
        # At least one distance, so that no shape is empty.
        ends = lowest, max(lowest, highest)
        lowest_entry, highest_entry = ends if reach is None else (min(max(end, -reach), reach) for end in ends)
        return range(int(highest_entry), int(lowest_entry) - 1, -1)


@dataclass(frozen=True)
class Plan:
    """The blocks of one attention call.

    runs   pairs of stretches of contiguous tokens; None if the tokens do not form such stretches
    """

    at: Positions
    keys_at: Positions
    mask: Mask
    batch: int
    heads: int
    runs: list[Run] | None

    @cached_property
    def row(self) -> AlignedRows | None:
        """Return the rows that all tokens form, if known without reading tensors."""
        return AlignedRows.of(self.at, self.keys_at, self.mask)

    @cached_property
    def offsets(self) -> list[int]:
        """Return the offset of the runs in each row of the batch."""
        assert self.runs is not None
        offsets = [0] * self.batch
        for run in self.runs:
            offsets[run.batch] = [run.offset] * (run.batch.stop - run.batch.start)
        return offsets

    def offset(self, block: Block) -> int:
        """Return a block's offset in its run (positions). Query i comes i - j + offset after key j."""
        return self.offsets[block.batch.start]

    def blocks(self, rows: int | None = None) -> Iterator[Block]:
        """Yield the blocks of at most `rows` queries in which a query sees a key. No query is in two of them."""
        rows = SIZES.rows if rows is None else min(rows, SIZES.rows)
        if self.runs is None:
            yield from self.blocks_of(slice(0, self.batch), slice(0, self.at.tokens), rows, self.keys_between)
            return
        for run in self.runs:
            yield from self.blocks_of(run.batch, run.rows, rows, partial(self.keys_in_reach, run))

    def blocks_of(self, batch: slice, queries: slice, rows: int, keys_of: Callable[[slice], slice]) -> Iterator[Block]:
        # Late queries see the most keys, and come first, so that reused memory never has to grow.
        for start in reversed(range(queries.start, queries.stop, rows)):
            block_rows = slice(start, min(start + rows, queries.stop))
            keys = keys_of(block_rows)
            if keys.start >= keys.stop:
                continue
            step = max(1, SIZES.pairs // (self.heads * (block_rows.stop - block_rows.start) * (keys.stop - keys.start)))
            for first in range(batch.start, batch.stop, step):
                yield Block(slice(first, min(first + step, batch.stop)), block_rows, keys)

    def keys_in_reach(self, run: Run, rows: slice) -> slice:
        """Return the keys of a run that some of these queries see."""
        start, stop = run.keys.start, run.keys.stop
        first, last = rows.start + run.offset, rows.stop - 1 + run.offset  # the keys at their own positions
        if self.mask.causal and self.mask.prefix and run.order is not None:
            stop = min(stop, max(last + 1, self.mask.prefix - run.order))
        lowest, highest = in_sight(self.mask)
        return slice(int(max(start, first - highest)), int(min(stop, last - lowest + 1)))

    def keys_between(self, rows: slice) -> slice:
        """Return the range of keys that some of these queries may see by order and document."""
        queries, keys = self.at.rows(rows), self.keys_at
        present = queries.order >= 0
        if not bool(present.any()):
            return slice(0, 0)
        orders = queries.order[present]
        lowest, highest = int(orders.min()), int(orders.max())
        visible = keys.order >= 0
        if self.mask.causal:
            visible = visible & (
                keys.order <= (highest if lowest >= self.mask.prefix else max(highest, self.mask.prefix - 1))
            )
        if self.mask.window is not None:
            visible = visible & (keys.order > lowest - self.mask.window) & (keys.order < highest + self.mask.window)
        if queries.document is not None and keys.document is not None:
            visible = visible & (keys.document >= queries.document.min()) & (keys.document <= queries.document.max())
        indices = visible.any(0).nonzero()
        return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)

    def hidden(self, block: Block, *, bias_hides: bool) -> Tensor | None:
        """Return a block's hidden pairs, boolean [1 or b, 1 or H, n, m]; None without any.

        bias_hides  whether the bias is -inf already for pairs that causality and window hide
        """
        mask = self.mask
        if self.runs is not None and not mask.prefix and (bias_hides or self.open(block)):
            if mask.tensor is None:
                return None
            mask = Mask(tensor=mask.tensor)
        hidden = ~mask.part(*block).allowed(*block.positions(self.at, self.keys_at))
        # amax of bytes is many times faster than any().
        return None if may_be_read(hidden) and not bool(hidden.view(torch.uint8).amax()) else hidden

    def open(self, block: Block) -> bool:
        """Whether causality and window hide no pair of a block, for contiguous tokens."""
        farthest = block.rows.stop - 1 - block.keys.start + self.offset(block)
        nearest = block.rows.start - (block.keys.stop - 1) + self.offset(block)
        lowest, highest = in_sight(self.mask)
        return nearest >= lowest and farthest <= highest

    def distances(self) -> range:
        """Return the distances of all blocks, far keys first, for contiguous tokens; never empty."""
        assert self.runs is not None
        highest = max((run.rows.stop - 1 - run.keys.start + run.offset for run in self.runs), default=0)
        lowest = min((run.rows.start - (run.keys.stop - 1) + run.offset for run in self.runs), default=0)
        # A block exceeds the visible range by less than its own rows.
        nearest, farthest = in_sight(self.mask)
        lowest, highest = max(lowest, nearest - SIZES.rows + 1), min(highest, farthest + SIZES.rows - 1)
        return range(int(max(highest, lowest)), int(lowest) - 1, -1)


def in_sight(mask: Mask) -> tuple[float, float]:
    """Return the smallest and largest distance visible under causality and window, without the prefix."""
    highest = math.inf if mask.window is None else mask.window - 1
    return 0 if mask.causal and not mask.prefix else -highest, highest


def plan_for(at: Positions, keys_at: Positions, mask: Mask, batch: int, heads: int, *, by_coords: bool) -> Plan:
    """Return the plan for these tokens; `by_coords` says whether coordinates matter, beside order."""
    return Plan(at, keys_at, mask, batch, heads, find_runs(at, keys_at, batch, by_coords=by_coords))


def find_runs(at: Positions, keys_at: Positions, batch: int, *, by_coords: bool) -> list[Run] | None:
    """Return the runs; None unless each document is one stretch and each row has one offset."""
    if at is keys_at and at.contiguous and (at.unit_step or not by_coords):
        all_tokens = slice(0, at.tokens)
        return [Run(slice(0, batch), all_tokens, all_tokens, 0, at.start)]
    documents = at.document is not None and keys_at.document is not None
    of_queries = stretches(at, documents=documents, by_coords=by_coords)
    of_keys = of_queries if at is keys_at else stretches(keys_at, documents=documents, by_coords=by_coords)
    if of_queries is None or of_keys is None:
        return None
    runs = []
    rows = max(len(of_queries), len(of_keys))
    for row in range(rows):
        batch_rows = slice(0, batch) if rows == 1 else slice(row, row + 1)
        queries_of, keys_of = (sides[row if len(sides) > 1 else 0] for sides in (of_queries, of_keys))
        for document, queries in queries_of.items():
            keys = keys_of.get(document)
            if keys is None:
                continue
            offset = queries.order - keys.order
            if by_coords and queries.coord - keys.coord != offset:
                return None
            if runs and runs[-1].batch == batch_rows and runs[-1].offset != offset:
                return None
            runs.append(Run(batch_rows, slice(*queries[:2]), slice(*keys[:2]), offset, keys.order))
    return runs


def stretches(at: Positions, *, documents: bool, by_coords: bool) -> list[dict[int, Stretch]] | None:
    """Return the stretch of each document, for each row of the batch or once for all.

    None if a document is more than one stretch, or if coordinates matter and do not count up by one.
    """
    if at.start is not None and not documents:
        return [{0: Stretch(0, at.tokens, at.start, at.start)}]
    if by_coords and (at.axes != 1 or at.coords.is_floating_point()):
        return None
    coord = at.coords[..., 0] if by_coords else at.order
    document = at.document if documents and at.document is not None else torch.zeros_like(at.order)
    order, coord, document = torch.broadcast_tensors(at.order, coord, document)
    present = order >= 0
    follows = present[:, 1:] & present[:, :-1] & (document[:, 1:] == document[:, :-1])
    follows = follows & (order.diff() == 1) & (coord.diff() == 1)
    starts, stops = present & ~F.pad(follows, (1, 0)), present & ~F.pad(follows, (0, 1))
    stretches_of_rows: list[dict[int, Stretch]] = [{} for _ in range(len(order))]
    facts = torch.stack(
        (*starts.nonzero().T, stops.nonzero()[:, 1] + 1, document[starts], order[starts], coord[starts])
    )
    if facts.shape[1] * MIN_TOKENS_PER_STRETCH > order.numel():
        return None
    for row, start, stop, name, first, first_coord in facts.T.tolist():
        if name in stretches_of_rows[row]:
            return None
        stretches_of_rows[row][name] = Stretch(start, stop, first - start, first_coord - start)
    return stretches_of_rows
