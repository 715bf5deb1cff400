"""Evaluates biases block by block in bounded memory.

For contiguous tokens, a bias of the distance is a view of a vector (`distances`), dot products with vectors of the
distance are a view of curves (`products`), a difference of levels is a row and a column (`levels`), and gates are
counted up to the end of a table (`counts`). For other tokens, distances are looked up, or the closure is called for the
block (`pairs`). Factored and dense biases work for all tokens (`grids`). `in_blocks` chooses once for a call.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, ByDistance, Counts, Dense, Factored, Levels, Pairs, Products, distance_tensor
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, ReusedMemory, length
from posenc.kernels.cpu.biases.counts import CountsInRow
from posenc.kernels.cpu.biases.distances import DistancesInRow, DistancesLookedUp, at_distances, lookup_ranges
from posenc.kernels.cpu.biases.grids import DenseInBlocks, FactoredInBlocks
from posenc.kernels.cpu.biases.levels import LevelsInRow
from posenc.kernels.cpu.biases.pairs import PairsInBlocks
from posenc.kernels.cpu.biases.products import products_in_row
from posenc.kernels.cpu.plan import Plan


def in_blocks(biases: Sequence[Bias], q: Tensor, keys: Keys, plan: Plan) -> "SumInBlocks":
    """Return these biases in blocks, by their types and the positions of the tokens."""
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
        distances = lookup_ranges(of_distance, plan) if of_distance else None
        if distances is not None:
            forms.append(DistancesLookedUp(of_distance, distances, q, plan))
        else:
            forms += [PairsInBlocks(bias.pairs(q, keys), plan.row) for bias in of_distance]
        return SumInBlocks(forms, q, None)
    for bias in of_distance:
        if bias.axes > 1:
            plan.at.coordinates(bias.axes, bias.module)  # contiguous tokens have one axis, so this raises
    distances = plan.distances()
    values = at_distances(of_distance, distance_tensor(distances, q.device)) if of_distance else None
    return SumInBlocks(forms, q, DistancesInRow(values, distances, q, plan))


class SumInBlocks:
    """The sum of several biases, with -inf for causality and window if these depend on the distance.

    hides_masked   whether values are -inf for pairs that causality and window hide; the kernel masks all others
    taken_off      a number [1 or H, 1] subtracted from all values of a head, which the softmax ignores; or None
    cached_blocks  blocks with their values, saved for the backward pass
    """

    def __init__(self, forms: list[BiasInBlocks], q: Tensor, in_row: DistancesInRow | None) -> None:
        # The view of distances comes last, to be added into the memory of the others.
        self.forms = [*forms, in_row] if in_row is not None and (in_row.inputs or in_row.hides) else forms
        self.hides_masked = in_row is not None and in_row.hides_masked
        self.taken_off = None if in_row is None else in_row.taken_off
        self.room = ReusedMemory(q, torch.promote_types(q.dtype, torch.float32))
        self.inputs: tuple[Tensor, ...] = sum((form.inputs for form in self.forms), ())
        self.counts = [len(form.inputs) for form in self.forms]
        self.owns = any(form.owns for form in self.forms)
        self.cached_blocks: list[tuple[Block, Tensor]] = []

    def hold(self, inputs: tuple[Tensor, ...]) -> None:
        """Set the inputs of all forms, or drop them with ()."""
        self.inputs, rest = inputs, iter(inputs)
        for form, count in zip(self.forms, self.counts, strict=True):
            form.hold(tuple(islice(rest, count)))

    @property
    def rows(self) -> int:
        """Return the maximum number of queries of a block."""
        if any(isinstance(form, CountsInRow) for form in self.forms):
            return SIZES.rows_counted
        return SIZES.rows_of_values if self.owns else SIZES.rows

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each form."""
        return tuple(form.name for form in self.forms if not (isinstance(form, DistancesInRow) and not form.inputs))

    def block(self, block: Block) -> Tensor | None:
        """Return the values of a block, last query first; None for 0.

        [1 or b, 1 or H, 1 or n, m] in float32 at least. The caller must not change them.
        """
        for outer, values in self.cached_blocks:
            if outer.holds(block):
                batch, _, keys = (slice(b.start - a.start, b.stop - a.start) for a, b in zip(outer, block, strict=True))
                return values[batch, ..., keys]
        if len(self.forms) == 1:
            return self.forms[0].block(block)
        total: Tensor | None = None
        is_own_memory = False
        for form in self.forms:
            columns = form.columns(block)
            if not length(columns):
                continue
            values_of_form = form.block(block._replace(keys=columns))
            if total is None:
                total, is_own_memory = values_of_form, form.owns
            elif is_own_memory and torch.broadcast_shapes(total.shape[:3], values_of_form.shape[:3]) == total.shape[:3]:
                # The total has its own memory of the full shape.
                total[..., columns.start - block.keys.start : columns.stop - block.keys.start].add_(values_of_form)
            else:
                total, is_own_memory = total + form.block(block), True
        return total

    def parts(self, block: Block) -> Iterator[Part]:
        """Yield the values in parts that cover all keys of the block. A part is valid until the next one."""
        first, last = block.keys.start, block.keys.stop
        near_keys = [part for form in self.forms if (part := form.near_keys(block)) is not None]
        if not near_keys:
            yield Part(block.keys, self.block(block))
            return
        start, stop = min(part.start for part in near_keys), max(part.stop for part in near_keys)
        start = start if start - first >= SIZES.far or start == last else first
        stop = stop if last - stop >= SIZES.far or stop == first else last
        for keys, far in ((slice(first, start), True), (slice(start, stop), False), (slice(stop, last), True)):
            if length(keys):
                part = block._replace(keys=keys)
                yield self.far(part) if far else Part(keys, self.block(part))

    def far(self, block: Block) -> Part:
        """Return the bias of keys that are far for every form: shared rows, views, and shifts of queries."""
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
                # Shared rows in new memory, a whole block in reused memory.
                target = None if shape[2] == 1 else self.room.tensor(*shape)
                bias = torch.add(bias, part.bias, out=target)
        # A row that all queries share is expanded, not copied.
        return Part(block.keys, None if bias is None else bias.expand(-1, -1, length(block.rows), -1), shift)


class BiasGradient:
    """Collects the gradients in the inputs of a bias during one backward pass."""

    def __init__(self, bias: SumInBlocks) -> None:
        self.forms = [(form, form.sums()) for form in bias.forms]

    def add(self, block: Block, upstream: Tensor) -> None:
        for form, sums in self.forms:
            form.take_slopes(block, upstream, *sums)

    def total(self) -> tuple[Tensor | None, ...]:
        return tuple(total for form, sums in self.forms for total in form.total(sums))
