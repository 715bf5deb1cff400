"""Biases of the distance in blocks: a vector of distances instead of a matrix of pairs.

T contiguous queries and S keys have only T + S - 1 distances. From the last query of a block to its first, the distance
falls by one with each query and with each key, so the block is a view of the vector: row r and column j hold entry
r + j (a Hankel matrix). Its gradient is the sum along each anti-diagonal.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.encoding.biases import ByDistance, distance_tensor, table_indices, whole_distances
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Part, ReusedMemory, length
from posenc.kernels.cpu.plan import Plan, in_sight

MAX_PER_TOKEN = 16
"""Maximum distances in a table, for each token."""

LONGEST_RUN = 64
"""Maximum adjacent keys that one lookup reads; the table is stored as many times."""


class DistancesInRow(BiasInBlocks):
    """Biases of the distance, with -inf for causality and window, for contiguous tokens.

    values     the bias [H, n] at the distances, or None without bias
    distances  all distances of the plan's blocks, falling by one

    The maximum of each head, `taken_off` [1 or H, 1], is subtracted from the values.
    """

    name = "distances in a row"
    owns = False

    def __init__(self, values: Tensor | None, distances: range, q: Tensor, plan: Plan) -> None:
        self.distances, self.plan = distances, plan
        self.inputs: tuple[Tensor, ...] = () if values is None else (values,)
        self.hides_masked = not plan.mask.prefix
        dtype = torch.promote_types(q.dtype, torch.float32)
        vector = torch.zeros(1, len(distances), device=q.device) if values is None else values.detach()
        vector = vector.to(torch.promote_types(vector.dtype, dtype))
        lowest, highest = in_sight(plan.mask) if self.hides_masked else (-math.inf, math.inf)
        self.hides = lowest > -math.inf or highest < math.inf
        if self.hides:
            distance = distance_tensor(distances, q.device)
            vector = vector.masked_fill((distance < lowest) | (distance > highest), -math.inf)
        # The softmax ignores a constant. Without the maximum, the keys with the largest weights have the smallest
        # numbers, which are rounded least.
        highest = vector.amax(1, keepdim=True).clamp(min=torch.finfo(vector.dtype).min)
        self.vector, self.taken_off = (vector - highest).to(dtype).contiguous(), highest.to(dtype)

    def first(self, block: Block) -> int:
        """Return the first entry of a block in the vector. It has the distance of its last query to its first key."""
        farthest = block.rows.stop - 1 - block.keys.start + self.plan.offset(block)
        return self.distances.start - farthest

    def columns(self, block: Block) -> slice:
        if self.inputs:
            return block.keys
        if self.plan.open(block):
            return slice(block.keys.start, block.keys.start)
        if self.plan.mask.window is not None:
            return block.keys
        # Keys no later than the first query are visible to all later queries too.
        seen_by_all = block.rows.start + self.plan.offset(block) + 1
        return slice(min(max(seen_by_all, block.keys.start), block.keys.stop), block.keys.stop)

    def block(self, block: Block) -> Tensor:
        _, n, m = block.size
        heads, head_stride = self.vector.shape[0], self.vector.stride(0)
        return self.vector.as_strided((1, heads, n, m), (0, head_stride, 1, 1), self.first(block))

    def near_keys(self, block: Block) -> slice | None:
        return None

    def far(self, block: Block) -> Part:
        return Part(block.keys, self.block(block) if self.inputs or not self.plan.open(block) else None)

    def sums(self) -> tuple[Tensor, ...]:
        # Millions of small numbers are summed at one distance.
        return tuple(torch.zeros_like(values, dtype=torch.float64) for values in self.inputs)

    def take_slopes(self, block: Block, upstream: Tensor, *sums: Tensor) -> None:
        for of_values in sums:
            diagonals, first = anti_diagonals(upstream).sum(0), self.first(block)
            of_values[:, first : first + diagonals.shape[1]] += diagonals

    def total(self, sums: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(of_values.to(values.dtype) for of_values, values in zip(sums, self.inputs, strict=True))


def lookup_ranges(biases: Sequence[ByDistance], plan: Plan) -> tuple[range, ...] | None:
    """Return the distances on each axis, far keys first; None unless they are whole, and few in total."""
    at, keys_at = plan.at, plan.keys_at
    if keys_at.axes != at.axes or any(bias.axes not in (0, at.axes) for bias in biases):
        return None
    distances = whole_distances(at, keys_at)
    is_small = distances is not None and math.prod(map(len, distances)) <= MAX_PER_TOKEN * (at.tokens + keys_at.tokens)
    return distances if is_small else None


class DistancesLookedUp(BiasInBlocks):
    """Biases of whole distances for tokens at any positions, on any axes: each pair looks its distance up."""

    name = "distances looked up"
    owns = False

    def __init__(self, biases: Sequence[ByDistance], distances: tuple[range, ...], q: Tensor, plan: Plan) -> None:
        self.plan = plan
        delta = [distance_tensor(axis_distances, q.device) for axis_distances in distances]
        values = at_distances(biases, delta[0] if len(delta) == 1 else torch.cartesian_prod(*delta))
        self.inputs: tuple[Tensor, ...] = (values,)
        table = values.detach().to(torch.promote_types(q.dtype, torch.float32))
        axes = [(distances_of_axis.start, len(distances_of_axis)) for distances_of_axis in distances]
        self.of_queries, self.of_keys = table_indices(plan.at, plan.keys_at, axes)
        self.room, self.run = ReusedMemory(q, table.dtype), run_length(self.of_keys)
        self.runs = table.unfold(1, self.run, 1).contiguous()  # [H, entries, run]

    def index(self, block: Block) -> tuple[Tensor, slice]:
        """Return the first entry of each query and run, and the slice of the block's keys.

        Entries are [1 or b, n, runs], last query first. The slice counts from the first key of the first run."""
        first, last = block.keys.start // self.run, -(-block.keys.stop // self.run)
        queries, keys = (x if len(x) == 1 else x[block.batch] for x in (self.of_queries, self.of_keys[:, :: self.run]))
        start = block.keys.start - first * self.run
        index = queries[:, block.rows].flip(1)[:, :, None] + keys[:, None, first:last]
        return index, slice(start, start + length(block.keys))

    def block(self, block: Block) -> Tensor:
        index, keys = self.index(block)
        values = self.room.tensor(len(self.runs), index.numel(), self.run)
        torch.index_select(self.runs, 1, index.flatten(), out=values)
        return values.view(-1, *index.shape[:2], index.shape[2] * self.run)[..., keys].movedim(0, 1)

    def sums(self) -> tuple[Tensor]:
        return (torch.zeros_like(self.runs, dtype=torch.float64),)

    def take_slopes(self, block: Block, upstream: Tensor, of_runs: Tensor) -> None:
        index, keys = self.index(block)
        B, H, n, _ = upstream.shape
        wide = upstream.new_zeros(H, B, n, index.shape[2] * self.run, dtype=torch.float64)
        wide[..., keys] = upstream.movedim(1, 0)
        of_runs.index_add_(1, index.expand(B, -1, -1).flatten(), wide.view(H, -1, self.run))

    def total(self, sums: tuple[Tensor, ...]) -> tuple[Tensor]:
        (of_runs,), (values,) = sums, self.inputs
        total = of_runs.new_zeros(values.shape)
        for place, entries in enumerate(of_runs.unbind(2)):
            total[:, place : place + entries.shape[1]] += entries
        return (total.to(values.dtype),)


def run_length(numbers: Tensor) -> int:
    """Return the size of equal runs of keys whose numbers [1 or B, S] count up by one. It is LONGEST_RUN at most."""
    S = numbers.shape[1]
    breaks = (numbers.diff(dim=1) != 1).any(0).nonzero()
    # Runs begin at every multiple of this, and of its divisors.
    step = math.gcd(S, *(breaks[:, 0] + 1).tolist())
    return max(size for size in range(1, min(step, LONGEST_RUN) + 1) if step % size == 0)


def at_distances(biases: Sequence[ByDistance], delta: Tensor) -> Tensor:
    """Return the sum [H, n] of biases at distances [n], or [n, A]."""
    first, *rest = (bias.values_on_axis(delta) for bias in biases)
    return sum(rest, first)


def anti_diagonals(x: Tensor) -> Tensor:
    """Return the sums along the anti-diagonals of x [B, H, n, m].

    The result is [B, H, n + m - 1]; row r and column j go to r + j. Each row must have n zeros behind it in memory:
    read with a row stride shorter by one, rows shift to the left, and anti-diagonals are columns.

    >>> anti_diagonals(torch.tensor([[[[1, 2, 3, 0, 0], [10, 20, 30, 0, 0]]]])[..., :3])
    tensor([[[ 1, 12, 23, 30]]])
    """
    B, H, n, m = x.shape
    assert n == 1 or x.stride(2) == n + m, "each row needs n zeros behind it"
    width = n + m - 1
    return x.as_strided((B, H, n, width), (x.stride(0), x.stride(1), width, 1), x.storage_offset()).sum(2)
