"""Which queries meet which keys, in blocks: found from what is known of the tokens, and where need be from their data.

Where tokens stand in a row, who sees whom depends on the distance alone, and a block begins and ends where its queries
look. Padding at the sides and packing leave stretches of such tokens, which are gone through one by one. Anything else
is masked pair by pair within its block.
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
from posenc.tokens.watched import may_be_read

FEWEST = 3
"""How many tokens stretches must have on average: of fewer, a block that holds several and hides pairs is faster."""


class Run(NamedTuple):
    """Queries in a row, and keys in a row that they may meet: one document without padding.

    batch   the rows of the batch that this holds for, a slice
    rows    the queries, a slice
    keys    the keys, a slice
    offset  query i stands i - j + offset after key j: in order, and in coordinates where those matter
    order   key j has the order j + order; None where nobody knows it
    """

    batch: slice
    rows: slice
    keys: slice
    offset: int
    order: int | None


class Stretch(NamedTuple):
    """Tokens in a row, from index `start` up to `stop`: token t has the order t + order and coordinate t + coord."""

    start: int
    stop: int
    order: int
    coord: int


@dataclass(frozen=True)
class Row:
    """Tokens in a row on both sides, known without looking at data: query i is i - j + offset after key j.

    offset   the first query's coordinate minus the first key's (positions)
    lowest   the smallest distance that is seen, 0 under a causal mask; -inf where there is none
    highest  the largest distance that is seen, in a window; inf where there is none
    """

    offset: int
    lowest: float
    highest: float

    @classmethod
    def of(cls, at: Positions, keys_at: Positions, mask: Mask) -> "Row | None":
        """None where tokens are not known to stand in a row, or the rule of the mask is more than a range."""
        if at.start is None or keys_at.start is None or mask.prefix:
            return None
        return cls(at.start - keys_at.start, *in_sight(mask))

    def met(self, queries: int, keys: int, reach: int | None) -> range:
        """The distances, far keys first, that so many tokens meet and see; the reach stands for all beyond it."""
        lowest, highest = max(self.offset - keys + 1, self.lowest), min(self.offset + queries - 1, self.highest)
        # Where nothing is seen there is still one distance, so that no shape is empty.
        ends = lowest, max(lowest, highest)
        bottom, top = ends if reach is None else (min(max(end, -reach), reach) for end in ends)
        return range(int(top), int(bottom) - 1, -1)


@dataclass(frozen=True)
class Plan:
    """The blocks of one attention call.

    runs   the stretches of tokens in a row that meet; None where the tokens do not, or are not known to, fall into such
    """

    at: Positions
    keys_at: Positions
    mask: Mask
    batch: int
    heads: int
    runs: list[Run] | None

    @cached_property
    def row(self) -> Row | None:
        """The one row that all tokens are, where that is known without looking at data."""
        return Row.of(self.at, self.keys_at, self.mask)

    @cached_property
    def offsets(self) -> list[int]:
        """The offset of the runs in each row of the batch."""
        assert self.runs is not None
        offsets = [0] * self.batch
        for run in self.runs:
            offsets[run.batch] = [run.offset] * (run.batch.stop - run.batch.start)
        return offsets

    def offset(self, block: Block) -> int:
        """Query i of a block in a run stands so much further than i - j after key j (positions)."""
        return self.offsets[block.batch.start]

    def blocks(self, rows: int | None = None) -> Iterator[Block]:
        """The blocks of at most so many queries in which some query sees some key. No query is in two of them."""
        rows = SIZES.rows if rows is None else min(rows, SIZES.rows)
        if self.runs is None:
            yield from self.blocks_of(slice(0, self.batch), slice(0, self.at.tokens), rows, self.looked_at)
            return
        for run in self.runs:
            yield from self.blocks_of(run.batch, run.rows, rows, partial(self.reached, run))

    def blocks_of(self, batch: slice, queries: slice, rows: int, keys_of: Callable[[slice], slice]) -> Iterator[Block]:
        # Late queries see the most keys, and come first: memory that is used again then never has to grow.
        for start in reversed(range(queries.start, queries.stop, rows)):
            few = slice(start, min(start + rows, queries.stop))
            keys = keys_of(few)
            if keys.start >= keys.stop:
                continue
            step = max(1, SIZES.pairs // (self.heads * (few.stop - few.start) * (keys.stop - keys.start)))
            for first in range(batch.start, batch.stop, step):
                yield Block(slice(first, min(first + step, batch.stop)), few, keys)

    def reached(self, run: Run, rows: slice) -> slice:
        """The keys of a run that the rule lets some of these queries see."""
        start, stop = run.keys.start, run.keys.stop
        first, last = rows.start + run.offset, rows.stop - 1 + run.offset  # the keys at their own positions
        if self.mask.causal and self.mask.prefix and run.order is not None:
            stop = min(stop, max(last + 1, self.mask.prefix - run.order))
        lowest, highest = in_sight(self.mask)
        return slice(int(max(start, first - highest)), int(min(stop, last - lowest + 1)))

    def looked_at(self, rows: slice) -> slice:
        """The keys, first to last, that some of these queries may see, as far as order and document tell."""
        asking, asked = self.at.rows(rows), self.keys_at
        present = asking.order >= 0
        if not bool(present.any()):
            return slice(0, 0)
        orders = asking.order[present]
        lowest, highest = int(orders.min()), int(orders.max())
        seen = asked.order >= 0
        if self.mask.causal:
            seen = seen & (
                asked.order <= (highest if lowest >= self.mask.prefix else max(highest, self.mask.prefix - 1))
            )
        if self.mask.window is not None:
            seen = seen & (asked.order > lowest - self.mask.window) & (asked.order < highest + self.mask.window)
        if asking.document is not None and asked.document is not None:
            seen = seen & (asked.document >= asking.document.min()) & (asked.document <= asking.document.max())
        indices = seen.any(0).nonzero()
        return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)

    def hidden(self, block: Block, *, masked: bool) -> Tensor | None:
        """Where a query of a block may not see a key: boolean [1 or b, 1 or H, n, m]; None where all may.

        `masked` says that the values are -inf already where causality and window forbid, for tokens in a row.
        """
        mask = self.mask
        if self.runs is not None and not mask.prefix and (masked or self.open(block)):
            if mask.given is None:
                return None
            mask = Mask(given=mask.given)
        hidden = ~mask.part(*block).allowed(*block.positions(self.at, self.keys_at))
        # The largest of bytes is found many times faster than whether any is true.
        return None if may_be_read(hidden) and not bool(hidden.view(torch.uint8).amax()) else hidden

    def open(self, block: Block) -> bool:
        """Whether causality and window let every query of a block see every key, for tokens in a row."""
        farthest = block.rows.stop - 1 - block.keys.start + self.offset(block)
        nearest = block.rows.start - (block.keys.stop - 1) + self.offset(block)
        lowest, highest = in_sight(self.mask)
        return nearest >= lowest and farthest <= highest

    def distances(self) -> range:
        """The distances that some block meets, far keys first, for tokens in a row; never empty."""
        assert self.runs is not None
        highest = max((run.rows.stop - 1 - run.keys.start + run.offset for run in self.runs), default=0)
        lowest = min((run.rows.start - (run.keys.stop - 1) + run.offset for run in self.runs), default=0)
        # A block that reaches beyond what is seen does so by less than its own rows.
        nearest, farthest = in_sight(self.mask)
        lowest, highest = max(lowest, nearest - SIZES.rows + 1), min(highest, farthest + SIZES.rows - 1)
        return range(int(max(highest, lowest)), int(lowest) - 1, -1)


def in_sight(mask: Mask) -> tuple[float, float]:
    """The smallest and the largest distance that causality and window let a query see, whatever a prefix shows."""
    highest = math.inf if mask.window is None else mask.window - 1
    return 0 if mask.causal and not mask.prefix else -highest, highest


def plan_for(at: Positions, keys_at: Positions, mask: Mask, batch: int, heads: int, *, by_coords: bool) -> Plan:
    """The plan for these tokens; `by_coords` says whether their coordinates matter, or only their order."""
    return Plan(at, keys_at, mask, batch, heads, find_runs(at, keys_at, batch, by_coords=by_coords))


def find_runs(at: Positions, keys_at: Positions, batch: int, *, by_coords: bool) -> list[Run] | None:
    """The runs of these tokens; None unless each document is one stretch, and each row of the batch has one offset."""
    if at is keys_at and at.contiguous and (at.unit_step or not by_coords):
        everything = slice(0, at.tokens)
        return [Run(slice(0, batch), everything, everything, 0, at.start)]
    documents = at.document is not None and keys_at.document is not None
    of_queries = stretches(at, documents=documents, by_coords=by_coords)
    of_keys = of_queries if at is keys_at else stretches(keys_at, documents=documents, by_coords=by_coords)
    if of_queries is None or of_keys is None:
        return None
    runs = []
    rows = max(len(of_queries), len(of_keys))
    for row in range(rows):
        there = slice(0, batch) if rows == 1 else slice(row, row + 1)
        asking, asked = (found[row if len(found) > 1 else 0] for found in (of_queries, of_keys))
        for document, queries in asking.items():
            keys = asked.get(document)
            if keys is None:
                continue
            offset = queries.order - keys.order
            if by_coords and queries.coord - keys.coord != offset:
                return None
            if runs and runs[-1].batch == there and runs[-1].offset != offset:
                return None
            runs.append(Run(there, slice(*queries[:2]), slice(*keys[:2]), offset, keys.order))
    return runs


def stretches(at: Positions, *, documents: bool, by_coords: bool) -> list[dict[int, Stretch]] | None:
    """For each row of the batch, or once for all, the stretch of tokens in a row that each document is.

    None where a document is more than one stretch, and where coordinates matter that do not count up by one.
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
    found: list[dict[int, Stretch]] = [{} for _ in range(len(order))]
    facts = torch.stack(
        (*starts.nonzero().T, stops.nonzero()[:, 1] + 1, document[starts], order[starts], coord[starts])
    )
    if facts.shape[1] * FEWEST > order.numel():
        return None
    for row, start, stop, name, first, where in facts.T.tolist():
        if name in found[row]:
            return None
        found[row][name] = Stretch(start, stop, first - start, where - start)
    return found
