"""Biases of the distance in blocks: a vector of distances instead of a matrix of pairs.

T queries and S keys in a row are only T + S - 1 distances apart. Seen from the last query of a block to its first, the
distance to a key falls by one with each query and with each key, so the whole block is a view of the vector: in row r
and column j stands entry r + j (a Hankel matrix). Its gradient is the sum along each anti-diagonal.
"""

import math

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.kernels.bias_in_blocks import Block, Part
from posenc.kernels.plan import Plan


def distance_bias(encoding: Encoding, q: Tensor, plan: Plan) -> "ByDistance | ByPair | None":
    """How to evaluate a bias of the distance in blocks; None where distances are not whole, or too many to tabulate.

    Without a bias it gives what causality and window forbid, where that is told by the distance.
    """
    biased = "by_distance" in encoding.doors
    if plan.runs is not None:
        if biased and encoding.axes > 1:
            plan.at.coordinates(encoding.axes, encoding)  # tokens in a row have one axis: refused
        distances = plan.distances()
        return ByDistance(
            values_at(encoding, q, distances.start, distances.stop) if biased else None, distances, q, plan
        )
    coords, keys = plan.at.coords, plan.keys_at.coords
    if not biased or encoding.axes > 1 or coords.shape[-1] != 1 or coords.is_floating_point():
        return None
    if keys.shape[-1] != 1 or keys.is_floating_point():
        return None
    highest, lowest = int(coords.max()) - int(keys.min()), int(coords.min()) - int(keys.max())
    distances = range(highest, lowest - 1, -1)
    if len(distances) > SPREAD * (plan.at.tokens + plan.keys_at.tokens):
        return None
    return ByPair(values_at(encoding, q, distances.start, distances.stop), distances, q, plan)


SPREAD = 16
"""Distances are tabulated when they are at most so many for each token."""


def values_at(encoding: Encoding, q: Tensor, start: int, stop: int) -> Tensor:
    """The bias [H, n] at the distances from `start` down to before `stop`."""
    delta = torch.arange(start, stop, -1, device=q.device)
    values = encoding.by_distance(delta if encoding.axes == 1 else delta[:, None])
    assert values is not None
    encoding.check_heads(values, q)
    return values


class ByDistance:
    """A bias of the distance, and what causality and window forbid, for tokens in a row.

    values     the bias [H, n] at the distances, or None where there is none
    distances  which these are: falling by one, and all that the plan's blocks meet
    """

    backwards = True

    def __init__(self, values: Tensor | None, distances: range, q: Tensor, plan: Plan) -> None:
        self.distances, self.plan = distances, plan
        self.inputs: tuple[Tensor, ...] = () if values is None else (values,)
        self.masked = not plan.mask.prefix
        dtype = torch.promote_types(q.dtype, torch.float32)
        vector = torch.zeros(1, len(distances), device=q.device) if values is None else values.detach()
        vector = vector.to(torch.promote_types(vector.dtype, dtype))
        vector = self.seen(vector) if self.masked else vector
        # The softmax does not see what all keys share. Without it the keys that weigh most have the smallest numbers,
        # which are rounded least.
        highest = vector.amax(1, keepdim=True).clamp(min=torch.finfo(vector.dtype).min)
        self.vector = (vector - highest).to(dtype).contiguous()

    def seen(self, vector: Tensor) -> Tensor:
        """The vector with -inf where causality and window forbid."""
        mask = self.plan.mask
        if not mask.causal and mask.window is None:
            return vector
        distance = torch.arange(self.distances.start, self.distances.stop, -1, device=vector.device)
        hidden = distance < 0 if mask.causal else torch.zeros_like(distance, dtype=torch.bool)
        if mask.window is not None:
            hidden = hidden | (distance.abs() >= mask.window)
        return vector.masked_fill(hidden, -math.inf)

    def first(self, block: Block) -> int:
        """Which entry of the vector stands first in a block: the distance from its last query to its first key."""
        farthest = block.rows.stop - 1 - block.keys.start + self.plan.offset(block)
        return self.distances.start - farthest

    def block(self, block: Block) -> Tensor:
        _, n, m = block.size
        heads, across = self.vector.shape[0], self.vector.stride(0)
        return self.vector.as_strided((1, heads, n, m), (0, across, 1, 1), self.first(block))

    def parts(self, block: Block) -> list[Part]:
        return [Part(block.keys, self.block(block))]

    def gradient(self) -> "DistanceGradient":
        return DistanceGradient(self)


class DistanceGradient:
    """Sums the gradient of the logits for each distance."""

    def __init__(self, bias: ByDistance) -> None:
        self.bias = bias
        # Some million small numbers come together at one distance.
        self.sums = [torch.zeros_like(values, dtype=torch.float64) for values in bias.inputs]

    def add(self, block: Block, upstream: Tensor) -> None:
        for sums in self.sums:
            along, first = anti_diagonals(upstream).sum(0), self.bias.first(block)
            sums[:, first : first + along.shape[1]] += along

    def total(self) -> tuple[Tensor | None, ...]:
        return tuple(sums.to(values.dtype) for sums, values in zip(self.sums, self.bias.inputs, strict=True))


class ByPair:
    """A bias of whole distances for tokens that stand anywhere: each pair of a block looks its distance up."""

    backwards = masked = False

    def __init__(self, values: Tensor, distances: range, q: Tensor, plan: Plan) -> None:
        self.distances, self.plan = distances, plan
        self.inputs: tuple[Tensor, ...] = (values,)
        self.table = values.detach().to(torch.promote_types(q.dtype, torch.float32))

    def index(self, block: Block) -> Tensor:
        """Which entry of the table each pair reads: [1 or b, n, m]."""
        at = self.plan.at.part(block.batch, block.rows).coords[..., 0]
        keys_at = self.plan.keys_at.part(block.batch, block.keys).coords[..., 0]
        return self.distances.start - at[:, :, None] + keys_at[:, None, :]

    def block(self, block: Block) -> Tensor:
        index = self.index(block)
        return self.table.index_select(1, index.flatten()).unflatten(1, index.shape).movedim(0, 1)

    def parts(self, block: Block) -> list[Part]:
        return [Part(block.keys, self.block(block))]

    def gradient(self) -> "PairGradient":
        return PairGradient(self)


class PairGradient:
    """Adds the gradient of each logit to that of its distance."""

    def __init__(self, bias: ByPair) -> None:
        self.bias = bias
        self.sums = torch.zeros_like(bias.table, dtype=torch.float64)

    def add(self, block: Block, upstream: Tensor) -> None:
        index = self.bias.index(block).expand(len(upstream), -1, -1).flatten()
        self.sums.index_add_(1, index, upstream.movedim(1, 0).flatten(1).double())

    def total(self) -> tuple[Tensor | None, ...]:
        return (self.sums.to(self.bias.inputs[0].dtype),)


def anti_diagonals(x: Tensor) -> Tensor:
    """The sum along each anti-diagonal of matrices x [B, H, n, m]: [B, H, n + m - 1], row r and column j to r + j.

    Each row must have n zeros behind it in memory. Read with rows shorter by one than they are, every row begins one
    column further to the left, and anti-diagonals are columns.

    >>> anti_diagonals(torch.tensor([[[[1, 2, 3, 0, 0], [10, 20, 30, 0, 0]]]])[..., :3])
    tensor([[[ 1, 12, 23, 30]]])
    """
    B, H, n, m = x.shape
    assert n == 1 or x.stride(2) == n + m, "each row needs n zeros behind it"
    width = n + m - 1
    return x.as_strided((B, H, n, width), (x.stride(0), x.stride(1), width, 1), x.storage_offset()).sum(2)
