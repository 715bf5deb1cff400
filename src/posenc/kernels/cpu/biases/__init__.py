"""Biases block by block, in bounded memory: how each form of a bias is had for a block of queries and keys, and sums.

Where tokens stand in a row, a bias of the distance is a view of a vector (`distances`), dot products with vectors of
the distance are a view of curves (`products`), a difference of levels is a row and a column (`levels`), and gates are
counted up to the end of a table (`counts`). Where they do not, distances are looked up, or the closure is asked for the
block (`pairs`). Vectors of two tokens are multiplied wherever these are (`grids`). Which of these serves is decided
here, once for a call, by the forms alone.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, ByDistance, Counts, Dense, Factored, Levels, Pairs, Products
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, Room, length
from posenc.kernels.cpu.biases.counts import CountsInRow
from posenc.kernels.cpu.biases.distances import DistancesInRow, DistancesLookedUp, at_distances, to_look_up, whole
from posenc.kernels.cpu.biases.grids import DenseInBlocks, FactoredInBlocks
from posenc.kernels.cpu.biases.levels import LevelsInRow
from posenc.kernels.cpu.biases.pairs import PairsInBlocks
from posenc.kernels.cpu.biases.products import products_in_row
from posenc.kernels.cpu.plan import Plan


def in_blocks(biases: Sequence[Bias], q: Tensor, keys: Keys, plan: Plan) -> "SumInBlocks":
    """How to have these biases in blocks, by their forms and by what the tokens allow."""
    forms: list[BiasInBlocks] = []
    of_distance = [bias for bias in biases if isinstance(bias, ByDistance)]
    with without_autocast(q):
        for bias in biases:
            if isinstance(bias, Dense):
                forms.append(DenseInBlocks(bias, q))
            elif isinstance(bias, Factored):
                forms.append(FactoredInBlocks(bias))
            elif isinstance(bias, Products) and plan.row is not None:
                forms += products_in_row(bias, plan.row, plan.at.tokens, plan.keys_at.tokens)
            elif isinstance(bias, Levels) and plan.row is not None and plan.row.lowest >= 0:
                forms.append(LevelsInRow(bias, plan.row))
            elif isinstance(bias, Counts) and plan.row is not None:
                forms.append(CountsInRow(bias, plan.row))
            elif isinstance(bias, Pairs):
                forms.append(PairsInBlocks(bias, plan.row))
    if plan.runs is None:
        distances = to_look_up(of_distance, plan) if of_distance else None
        if distances is not None:
            forms.append(DistancesLookedUp(of_distance, distances, q, plan))
        else:
            forms += [PairsInBlocks(bias.pairs(q, keys), plan.row) for bias in of_distance]
        return SumInBlocks(forms, q, None)
    for bias in of_distance:
        if bias.axes > 1:
            plan.at.coordinates(bias.axes, bias.module)  # tokens in a row have one axis: refused
    distances = plan.distances()
    values = at_distances(of_distance, whole(distances, q.device)) if of_distance else None
    return SumInBlocks(forms, q, DistancesInRow(values, distances, q, plan))


class SumInBlocks:
    """Several biases as one, and what causality and window forbid where that is told by the distance.

    masked     whether the values are -inf wherever causality and window forbid; else the kernel sees to it. What else a
               mask says (given tensors, a prefix, padding, documents) is up to the kernel
    taken_off  what all values of a head lack, [1 or H, 1], which the softmax does not see; None where they lack nothing
    kept       blocks with their values, which need not be computed again
    """

    def __init__(self, forms: list[BiasInBlocks], q: Tensor, in_row: DistancesInRow | None) -> None:
        # The view of distances comes last, to be added into memory that the others own.
        self.forms = [*forms, in_row] if in_row is not None and (in_row.inputs or in_row.hides) else forms
        self.masked = in_row is not None and in_row.masked
        self.taken_off = None if in_row is None else in_row.taken_off
        self.room = Room(q, torch.promote_types(q.dtype, torch.float32))
        self.inputs: tuple[Tensor, ...] = sum((form.inputs for form in self.forms), ())
        self.counts = [len(form.inputs) for form in self.forms]
        self.owns = any(form.owns for form in self.forms)
        self.kept: list[tuple[Block, Tensor]] = []

    def hold(self, inputs: tuple[Tensor, ...]) -> None:
        """Let forms with numbers for all pairs have these inputs, or with () none until they are needed again."""
        self.inputs, rest = inputs, iter(inputs)
        for form, count in zip(self.forms, self.counts, strict=True):
            form.hold(tuple(islice(rest, count)))

    @property
    def rows(self) -> int:
        """How many queries a block has at most."""
        if any(isinstance(form, CountsInRow) for form in self.forms):
            return SIZES.rows_counted
        return SIZES.rows_of_values if self.owns else SIZES.rows

    @property
    def names(self) -> tuple[str, ...]:
        """What serves, in words."""
        return tuple(form.name for form in self.forms if not (isinstance(form, DistancesInRow) and not form.inputs))

    def block(self, block: Block) -> Tensor | None:
        """The values of a block, last query first: [1 or b, 1 or H, 1 or n, m] in float32 at least; None where 0.

        They are never changed by who asks. The backward pass asks for fewer keys at once than the forward pass.
        """
        for kept, values in self.kept:
            if kept.holds(block):
                batch, _, keys = (slice(b.start - a.start, b.stop - a.start) for a, b in zip(kept, block, strict=True))
                return values[batch, ..., keys]
        if len(self.forms) == 1:
            return self.forms[0].block(block)
        total: Tensor | None = None
        owned = False
        for form in self.forms:
            columns = form.columns(block)
            if not length(columns):
                continue
            here = form.block(block._replace(keys=columns))
            if total is None:
                total, owned = here, form.owns
            elif owned and torch.broadcast_shapes(total.shape[:3], here.shape[:3]) == total.shape[:3]:
                # In memory of its own for every number.
                total[..., columns.start - block.keys.start : columns.stop - block.keys.start].add_(here)
            else:
                total, owned = total + form.block(block), True
        return total

    def parts(self, block: Block) -> Iterator[Part]:
        """The same in parts that together have all keys of the block, each once.

        A part is good until the next one is asked for: they share memory.
        """
        first, last = block.keys.start, block.keys.stop
        near = [part for form in self.forms if (part := form.near(block)) is not None]
        if not near:
            yield Part(block.keys, self.block(block))
            return
        start, stop = min(part.start for part in near), max(part.stop for part in near)
        start = start if start - first >= SIZES.far or start == last else first
        stop = stop if last - stop >= SIZES.far or stop == first else last
        for keys, far in ((slice(first, start), True), (slice(start, stop), False), (slice(stop, last), True)):
            if length(keys):
                part = block._replace(keys=keys)
                yield self.far(part) if far else Part(keys, self.block(part))

    def far(self, block: Block) -> Part:
        """Keys that are far for every form: rows that all queries share, views, and a shift of each query."""
        shift: Tensor | None = None
        bias: Tensor | None = None
        for form in self.forms:
            part = form.far(block)
            if part.shift is not None:
                shift = part.shift if shift is None else shift + part.shift
            if part.bias is not None:
                if bias is None:
                    bias = part.bias
                    continue
                shape = [max(sizes) for sizes in zip(bias.shape, part.bias.shape, strict=True)]
                # Rows as they are, a whole block in memory that is used again.
                out = None if shape[2] == 1 else self.room.of(*shape)
                bias = torch.add(bias, part.bias, out=out)
        # A row that all queries share is not written out for each.
        return Part(block.keys, None if bias is None else bias.expand(-1, -1, length(block.rows), -1), shift)


class BiasGradient:
    """Collects the gradient in each of the inputs of a bias, in one pass backwards."""

    def __init__(self, bias: SumInBlocks) -> None:
        self.forms = [(form, form.sums()) for form in bias.forms]

    def add(self, block: Block, upstream: Tensor) -> None:
        for form, sums in self.forms:
            form.take_slopes(block, upstream, *sums)

    def total(self) -> tuple[Tensor | None, ...]:
        return tuple(total for form, sums in self.forms for total in form.total(sums))
