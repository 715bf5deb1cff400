"""Biases as values: door 3 of an encoding returns them, and kernels dispatch on their types.

A bias is a number for each query, key and head, added to the scaled logit. Each of the eight types holds its inputs,
evaluates on a whole grid, and maps to some heads of a model. ValueVectors, which a rule adds to values, is passed in
the same list.

ByDistance   a function of the signed distance alone (ALiBi, T5)
Pairs        a closure for each pair of tokens (CoPE, FIRE)
Products     such a closure that for whole distances is a sum of dot products with vectors of the distance (Shaw)
Levels       such a closure that is a difference of two levels (forgetting)
Counts       such a closure that looks up a sum of gates between the two tokens (CoPE)
Factored     a dot product of a vector of the query and one of the key (TUPE)
Dense        numbers for all pairs (a floating mask, logits computed by a rule of door 4)
BranchedLogits     other queries and keys for some of the pairs (distance maps of rotary)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from types import MethodType
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, at_token, dot_products, head_values, heads_mod, index_grids, table_mod
from posenc.tokens.positions import Positions, distance
from posenc.tokens.shared_tables import number_tensor
from posenc.tokens.tracing import is_traced, is_watched, may_be_read

BiasType = TypeVar("BiasType", bound="Bias")

BIASES = frozenset({"by_distance", "biases"})
"""The two methods of door 3."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Bias:
    """Base of all biases.

    head_numbers  the heads of the model that the bias is for, one for each of its own; None: all
    total_heads   number of heads of the model, if the bias is for some
    """

    head_numbers: tuple[int, ...] | None = None
    total_heads: int = 0

    def on_heads(self: BiasType, heads: Sequence[int], total_heads: int) -> BiasType:
        """Return the same bias on these of `total_heads` heads; the others have none."""
        heads_of_model = tuple(heads) if self.head_numbers is None else tuple(heads[head] for head in self.head_numbers)
        return replace(self, head_numbers=heads_of_model, total_heads=total_heads)

    def to_model_heads(self, values: Tensor, axis: int) -> Tensor:
        """Return values for all heads of the model: 0 for heads without the bias. A shared row stays shared."""
        if self.head_numbers is None:
            return values
        if values.shape[axis] == 1 != len(self.head_numbers):
            values = values.expand(*(len(self.head_numbers) if dim == axis else -1 for dim in range(values.dim())))
        return spread_heads(values, axis, self.head_numbers, self.total_heads)

    @property
    def module(self) -> nn.Module | None:
        """Return the module whose parameters the bias reads, beside its own tensors."""
        return None

    def closure(self) -> ScoreMod:
        """Return the bias as a FlexAttention closure of one pair."""
        raise NotImplementedError

    def fused_closure(self, dtype: torch.dtype) -> ScoreMod:
        """Return a closure of sums and table entries alone, which a fused GPU kernel accepts."""
        return self.closure()

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the bias of all pairs, [1 or B, 1 or H, 1 or T, S], unmasked."""
        raise NotImplementedError

    def added_to(self, logits: Tensor) -> Tensor:
        """Return the logits [B, H, T, S] with the bias."""
        return self.closure()(logits, *index_grids(logits))


@dataclass(frozen=True, eq=False)
class ByDistance(Bias):
    """A function of the signed distance alone: bias(h, i, j) = f_h(m_i - n_j).

    encoding      the module with the function of distances [...], or [..., A] if its `axes` are not 1
    at, keys_at   positions of queries and keys
    heads         number of query heads, if known
    function      name of the method
    """

    encoding: Any
    at: Positions
    keys_at: Positions
    heads: int | None
    function: str = field(default="by_distance", kw_only=True)

    @property
    def module(self) -> nn.Module:
        return self.encoding

    @property
    def axes(self) -> int:
        return self.encoding.axes

    def values(self, delta: Tensor) -> Tensor:
        """Return the bias [H, ...] at distances [...], or [..., A].

        Raises ValueError unless there is a row for each query head: a single row would broadcast silently.
        """
        values = getattr(self.encoding, self.function)(delta)
        check_head_rows(self.encoding, values, delta.dim() - (self.axes != 1), self.heads)
        return self.to_model_heads(values, 0)

    def values_on_axis(self, delta: Tensor) -> Tensor:
        """Return the bias [H, n] at distances [n] on one axis, or [n, A] on several."""
        return self.values(delta if self.axes == 1 or delta.dim() > 1 else delta[:, None])

    def closure(self) -> ScoreMod:
        m, n = (positions.coordinates(self.axes, self.encoding) for positions in (self.at, self.keys_at))

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            values = self.values(at_token(m, b, i) - at_token(n, b, j))
            return score + head_values(values, h).to(score.dtype)

        return score_mod

    def fused_closure(self, dtype: torch.dtype) -> ScoreMod:
        axes, ends = self.at.axes, distances_between(self.at, self.keys_at)
        lowest, highest = ends or (0, 0)
        size = highest - lowest + 1
        if ends is None or self.axes not in (0, axes) or size**axes > self.at.tokens * self.keys_at.tokens:
            return table_mod(self.dense(dtype))
        delta = torch.arange(highest, lowest - 1, -1, device=self.at.device)
        table = self.values_on_axis(torch.cartesian_prod(*[delta] * axes)).to(dtype)
        of_queries, of_keys = table_indices(self.at, self.keys_at, [(highest, size)] * axes)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + table[h, at_token(of_queries, b, i) + at_token(of_keys, b, j)].to(score.dtype)

        return score_mod

    @cached_property
    def grids(self) -> dict[Any, Tensor]:
        """Return the cached grids, by dtype and gradient mode, for layers that share the bias; copies start empty."""
        return {}

    def dense(self, dtype: torch.dtype) -> Tensor:
        if torch.compiler.is_compiling() or is_watched():
            return self.on_grid(dtype)
        key = dtype, torch.is_grad_enabled()
        if key not in self.grids:
            self.grids[key] = self.on_grid(dtype)
        return self.grids[key]

    def in_sight(self, keys_ahead: int, dtype: torch.dtype) -> Tensor:
        """Return the bias [1, H, T, S] of contiguous tokens on one axis. Keys after i + keys_ahead have -inf."""
        T, S, device = self.at.tokens, self.keys_at.tokens, self.at.device
        key = keys_ahead, dtype, torch.is_grad_enabled()
        if key not in self.grids:
            vector = self.values_on_axis(torch.arange(keys_ahead + T - 1, -1, -1, device=device)).to(dtype)
            vector = F.pad(vector, (0, 1), value=-math.inf)
            index = distance_indices(T, S, device).clamp(max=keys_ahead + T).expand(vector.shape[0], T, S)
            grid = vector[:, None].expand(-1, T, -1).gather(-1, index)[None]
            if is_watched():
                return grid
            self.grids[key] = grid
        return self.grids[key]

    def on_grid(self, dtype: torch.dtype) -> Tensor:
        at, keys_at = self.at, self.keys_at
        distances = one_query_range(at, keys_at) if self.axes <= 1 else None
        if distances is not None:
            return self.values_on_axis(distance_tensor(distances, at.device)).to(dtype)[None, :, None]
        offset = steps_between(at, keys_at) if self.axes <= 1 else None
        if offset is not None:
            # T contiguous queries and S keys have only T + S - 1 distances; a gather spreads them into the matrix.
            # (Unfold would too, but it recompiles for every length, and its gradient is slower.)
            T, S, device = at.tokens, keys_at.tokens, at.order.device
            vector = self.values_on_axis(torch.arange(offset + T - 1, offset - S, -1, device=device))  # [H, T + S - 1]
            index = distance_indices(T, S, device).expand(vector.shape[0], T, S)
            return vector.to(dtype)[:, None].expand(-1, T, -1).gather(-1, index)[None]  # [1, H, T, S]
        values = self.looked_up()
        if values is None:
            values = self.values(distance(at, keys_at, self.encoding, self.axes))  # [H, B or 1, T, S]
        return values.movedim(0, 1).to(dtype)

    def looked_up(self) -> Tensor | None:
        """Return the bias [H, B or 1, T, S] from a smaller table of whole distances, or None."""
        at, keys_at = self.at, self.keys_at
        if not (at.axes == keys_at.axes == self.axes and at.coords.is_cpu and may_be_read(at.coords, keys_at.coords)):
            return None
        distances = whole_distances(at, keys_at)
        if distances is None or math.prod(map(len, distances)) > at.tokens * keys_at.tokens:
            return None
        of_queries, of_keys = table_indices(at, keys_at, [(axis.start, len(axis)) for axis in distances])
        index = of_queries[:, :, None] + of_keys[:, None]
        table = self.values_on_axis(torch.cartesian_prod(*(distance_tensor(axis, at.device) for axis in distances)))
        return table.index_select(1, index.flatten()).unflatten(1, index.shape)

    def pairs(self, q: Tensor, keys: Keys) -> "Pairs":
        """Return the same bias as a closure, for distances that cannot be tabulated."""
        keys = Keys(keys.k, keys.k, self.keys_at)
        q = q if self.head_numbers is None else q[:, list(self.head_numbers)]
        closure = partial(distance_closure, function=self.function)
        bias = Pairs(MethodType(closure, self.encoding), q, self.at, keys, reads_between=False)
        return replace(bias, head_numbers=self.head_numbers, total_heads=self.total_heads)


def distance_closure(encoding: Any, q: Tensor, at: Positions, keys: Keys, *, function: str) -> ScoreMod:
    """Return the closure behind `ByDistance.pairs`."""
    return ByDistance(encoding, at, keys.at, heads=q.shape[1], function=function).closure()


@dataclass(frozen=True, eq=False)
class Pairs(Bias):
    """A closure for each pair of tokens, for a bias that needs more than a distance.

    score_mod      a method of a module: (q, at, keys) -> closure. It reads these and the module's own constants and
                   parameters alone, so it can be called for a block of queries and keys
    q              queries [B, H, T, D]
    at             their positions
    keys           keys, with precomputed facts of tokens: `memo` of keys, `query_memo` of queries
    facts          adds facts to keys just before pairs are evaluated; None: no facts to add
    reads_between  whether the closure of a query and a key also reads the keys between them. False if pairs are
                   independent: blocks then cost less
    """

    score_mod: Callable[[Tensor, Positions, Keys], ScoreMod]
    q: Tensor
    at: Positions
    keys: Keys
    facts: Callable[[Keys], Keys] | None = field(default=None, kw_only=True)
    reads_between: bool = True

    @property
    def module(self) -> nn.Module:
        return module_of(self.score_mod)

    def full_keys(self) -> Keys:
        """Return the keys with all facts that the closure reads."""
        return self.keys if self.facts is None else self.facts(self.keys)

    def closure(self) -> ScoreMod:
        return self.on_model_heads(self.score_mod(self.q, self.at, self.full_keys()))

    def on_model_heads(self, modify: ScoreMod) -> ScoreMod:
        """Return a closure of the bias's heads as a closure of the model's heads."""
        heads = self.head_numbers
        return modify if heads is None else heads_mod(heads, self.total_heads, modify, self.q.device)

    def dense(self, dtype: torch.dtype) -> Tensor:
        zeros = self.q.new_zeros((*self.q.shape[:3], self.keys.at.tokens), dtype=dtype)
        return self.to_model_heads(self.score_mod(self.q, self.at, self.full_keys())(zeros, *index_grids(zeros)), 1)

    def backwards(self, module: nn.Module, q: Tensor, at: Positions, keys: Keys, dtype: torch.dtype) -> Tensor:
        """Return the bias [B, H, n, m] of some tokens, last query first. `module` is a copy of its own."""
        modify = MethodType(cast(MethodType, self.score_mod).__func__, module)(q, at, keys)
        zeros = q.new_zeros((*q.shape[:3], keys.at.tokens), dtype=dtype)
        return self.to_model_heads(modify(zeros, *index_grids(zeros, backwards=True)), 1)


class DotProducts(NamedTuple):
    """Dot products with a vector of the distance, in float32 at least: bias(i, j) = factors_i . vectors[m_i - n_j].

    factors  [B, H, T, C]    one vector of each query
    vectors  [1 or H, n, C]  one of each requested distance, in order; or one for all of them
    of_keys  whether keys are multiplied, factors [B, H, S, C]: bias(i, j) = factors_j . vectors[m_i - n_j]
    """

    factors: Tensor
    vectors: Tensor
    of_keys: bool = False


@dataclass(frozen=True, eq=False)
class Products(Pairs):
    """A closure that for whole distances is a sum of dot products with vectors of the distance.

    products     whole distances, a range of contiguous tokens -> DotProducts, one or more
    same_beyond  the distance (positions) from which on, either way, the vectors are equal; None: never
    """

    products: Callable[[range], Sequence[DotProducts]] = field(kw_only=True)
    same_beyond: int | None = field(default=None, kw_only=True)
    reads_between: bool = False

    def dense(self, dtype: torch.dtype) -> Tensor:
        distances = one_query_range(self.at, self.keys.at)
        if distances is not None:
            return self.of_one_query(distances).to(dtype)
        # In a graph the distances would be constants of one length.
        in_graph = torch.compiler.is_compiling() or is_traced()
        offset = None if in_graph else steps_between(self.at, self.keys.at)
        return super().dense(dtype) if offset is None else self.in_row(offset).to(dtype)

    def in_row(self, offset: int) -> Tensor:
        """Return the bias [B, H, T, S] of contiguous tokens. It multiplies each token by every vector once."""
        T, S, device = self.at.tokens, self.keys.at.tokens, self.q.device
        index, bias = distance_indices(T, S, device), torch.zeros((), device=device)
        for factors, vectors, of_keys in self.dot_products(range(offset + T - 1, offset - S, -1)):
            products, place = factors @ vectors.transpose(-1, -2), index.mT if of_keys else index
            place = place.clamp(max=products.shape[-1] - 1)
            values = products.gather(-1, place.expand(*products.shape[:2], *place.shape))
            bias = bias + (values.mT if of_keys else values)
        return bias

    def of_one_query(self, distances: range) -> Tensor:
        """Return the bias [B, H, 1, S] of one query. The first near key's vector serves all farther ones."""
        far, near_distances = split_far(distances, self.same_beyond)
        bias = None
        for factors, vectors, of_keys in self.dot_products(near_distances):
            if of_keys:
                first = (factors[:, :, :far] * vectors[:, :1]).sum(-1)
                values = torch.cat((first, (factors[:, :, far:] * vectors).sum(-1)), -1)[:, :, None]
            else:
                values = factors @ vectors.transpose(-1, -2)
                values = torch.cat((values[..., :1].expand(-1, -1, -1, far), values), -1) if far else values
            bias = values if bias is None else bias + values
        assert bias is not None
        return bias

    def dot_products(self, distances: range) -> list[DotProducts]:
        """Return the terms for these distances, for the heads of the model."""
        terms = list(self.products(distances))
        if self.head_numbers is None:
            return terms
        return [
            term._replace(
                factors=self.to_model_heads(term.factors, 1),
                vectors=term.vectors if term.vectors.shape[0] == 1 else self.to_model_heads(term.vectors, 0),
            )
            for term in terms
        ]


@dataclass(frozen=True, eq=False)
class Counts(Pairs):
    """A bias that each query looks up in its own table, by a sum of gates.

    bias(i, j) = table_i[min(sum of sigmoid(rate * q_i . k_l) over order_j <= order_l <= order_i, last entry)], read by
    linear interpolation between entries.

    rate   factor of q . k in the gates
    table  queries [B, H, T, D] -> their tables [B, H, T, entries], in float32 at least
    """

    rate: float = field(kw_only=True)
    table: Callable[[Tensor], Tensor] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Levels(Pairs):
    """A bias that is a difference of levels, for keys no later than their query.

    bias(i, j) = of_queries_i - of_keys_j within a document, in float64 if possible. The closure defines other keys.

    of_queries  [B, H, T]
    of_keys     [B, H, S]
    """

    of_queries: Tensor = field(kw_only=True)
    of_keys: Tensor = field(kw_only=True)
    reads_between: bool = False

    def dense(self, dtype: torch.dtype) -> Tensor:
        distances = one_query_range(self.at, self.keys.at)
        if distances is None or distances[-1] < 0:
            return super().dense(dtype)
        of_query, of_keys = self.levels()
        return (of_query[..., None] - of_keys[:, :, None]).to(dtype)

    def levels(self) -> tuple[Tensor, Tensor]:
        """Return the levels of queries and of keys, for the heads of the model."""
        return self.to_model_heads(self.of_queries, 1), self.to_model_heads(self.of_keys, 1)


@dataclass(frozen=True, eq=False)
class Factored(Bias):
    """A bias of dot products, a query's vector times a key's, in float32 at least.

    of_queries  [1 or B, H, T, C]
    of_keys     [1 or B, H, S, C]
    """

    of_queries: Tensor
    of_keys: Tensor

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return the vectors of queries and of keys, for the heads of the model."""
        return self.to_model_heads(self.of_queries, 1), self.to_model_heads(self.of_keys, 1)

    def closure(self) -> ScoreMod:
        of_queries, of_keys = self.factors()

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + dot_products(of_queries, of_keys, b, h, i, j).to(score.dtype)

        return score_mod

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.to_model_heads(self.of_queries @ self.of_keys.transpose(-1, -2), 1).to(dtype)


@dataclass(frozen=True, eq=False)
class Dense(Bias):
    """Numbers for all pairs.

    logits  broadcastable to [B, H, T, S], floating
    """

    logits: Tensor

    def closure(self) -> ScoreMod:
        return table_mod(self.dense(self.logits.dtype))

    def dense(self, dtype: torch.dtype) -> Tensor:
        logits = self.logits[(None,) * (4 - self.logits.dim())]
        return self.to_model_heads(logits, 1).to(dtype)

    def added_to(self, logits: Tensor) -> Tensor:
        return logits + self.dense(logits.dtype)


class Branch(NamedTuple):
    """Other queries and keys for some of the pairs.

    q      [B, H, T, D]
    k      [B, KV, S, D]
    holds  (m, n) -> whether the branch is for a query at m and a key at n; both are coordinates that broadcast
    """

    q: Tensor
    k: Tensor
    holds: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class BranchedLogits(Bias):
    """A bias that gives some pairs other queries and keys than the kernel's own.

    bias(i, j) = scale * (q'_i . k'_j - q_i . k_j), of the first branch that holds for i and j; 0 if none does

    q, k         the kernel's own queries [B, H, T, D] and keys [B, KV, S, D]
    branches     the other queries and keys
    at, keys_at  positions of queries and keys, on one axis
    scale        factor of the logits
    name         a name of the partition into branches, as a cache key
    """

    q: Tensor
    k: Tensor
    branches: Sequence[Branch]
    at: Positions
    keys_at: Positions
    scale: float
    name: str

    def closure(self) -> ScoreMod:
        return table_mod(self.dense(torch.promote_types(self.q.dtype, torch.float32)))

    def dense(self, dtype: torch.dtype) -> Tensor:
        base = product(self.q, self.k) * self.scale
        logits = base
        all_tokens = slice(None)
        for branch, is_here in zip(self.branches, self.branch_masks(all_tokens, all_tokens, all_tokens), strict=True):
            logits = torch.where(is_here[:, None], product(branch.q, branch.k) * self.scale, logits)
        return self.to_model_heads((logits - base).to(dtype), 1)

    def branch_of(self, m: Tensor, n: Tensor) -> Tensor:
        """Return the branch number (from 1) for queries at m and keys at n; 0 for none."""
        number = torch.zeros_like(m - n, dtype=torch.long)
        for place, branch in reversed(list(enumerate(self.branches, 1))):
            number = torch.where(branch.holds(m, n), place, number)
        return number

    def branch_masks(self, batch: slice, rows: slice, keys: slice) -> list[Tensor]:
        """Return a mask [1 or b, n, m] of each branch's pairs. No pair is in two."""
        m, n = (positions.axis("a distance map") for positions in (self.at, self.keys_at))
        m, n = (coords if coords.shape[0] == 1 else coords[batch] for coords in (m, n))
        if all(positions.extent is not None and positions.extent < 1 << 31 for positions in (self.at, self.keys_at)):
            # int32 halves the memory traffic.
            m, n = (coords if coords.is_floating_point() else coords.int() for coords in (m, n))
        m, n = m[:, rows, None], n[:, None, keys]
        is_free, masks = None, []
        for branch in self.branches:
            is_here = branch.holds(m, n)
            is_here = is_here if is_free is None else is_here & is_free
            is_free = ~is_here if is_free is None else is_free & ~is_here
            masks.append(is_here)
        return masks


@dataclass(frozen=True, eq=False)
class ValueVectors(Bias):
    """Vectors that are added to values by distance: z_i = sum_j A_ij (v_j + vector(m_i - n_j)). They are no bias.

    vectors      whole distances, a range of contiguous tokens -> their vectors [1 or H, R, E]
    same_beyond  the distance (positions) from which on, either way, the vector is the same
    by_pairs     computes the same output and weights by a rule that reads all weights
    """

    vectors: Callable[[range], Tensor]
    same_beyond: int
    by_pairs: Callable[[], tuple[Tensor, Tensor | None]]


def whole_distances(at: Positions, keys_at: Positions) -> tuple[range, ...] | None:
    """Return the range of distances on each axis, far keys first; None unless coordinates are whole."""
    coords, keys = at.coords, keys_at.coords
    if coords.is_floating_point() or keys.is_floating_point() or not (coords.numel() and keys.numel()):
        return None
    ends = (coords.flatten(0, 1).aminmax(dim=0), keys.flatten(0, 1).aminmax(dim=0))
    (lowest, highest), (first, last) = ((low.tolist(), high.tolist()) for low, high in ends)
    return tuple(range(highest[a] - first[a], lowest[a] - last[a] - 1, -1) for a in range(coords.shape[-1]))


def distance_tensor(distances: range, device: torch.device | None) -> Tensor:
    """Return a range of distances as a tensor [n]."""
    return torch.arange(distances.start, distances.stop, distances.step, device=device)


def table_indices(at: Positions, keys_at: Positions, axes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return a number of each query [B or 1, T] and key [B or 1, S]. Their sum is a pair's index in the table.

    axes  for each axis the greatest distance, which comes first in the table, and the number of distances
    """
    of_queries = of_keys = torch.zeros((), dtype=torch.long, device=at.device)
    for axis, (farthest, size) in enumerate(axes):
        of_queries = of_queries * size + (farthest - at.coords[..., axis])
        of_keys = of_keys * size + keys_at.coords[..., axis]
    return of_queries, of_keys


def distance_indices(queries: int, keys: int, device: torch.device | None) -> Tensor:
    """Return the index [T, S] of each pair's distance among those of contiguous tokens, far keys first."""
    return queries - 1 - torch.arange(queries, device=device)[:, None] + torch.arange(keys, device=device)


def steps_between(at: Positions, keys_at: Positions) -> int | None:
    """Return first query position minus first key position, if both count up by one; None if unknown."""
    if at is keys_at:
        return 0 if at.contiguous and at.unit_step else None
    # In a compiled graph it would be a constant of one call.
    if at.start is None or keys_at.start is None or torch.compiler.is_compiling():
        return None
    return at.start - keys_at.start


def distances_between(at: Positions, keys_at: Positions) -> tuple[int, int] | None:
    """Return the lowest and highest distance (positions) on any axis, known without reading tensors, or None."""
    if at.start is not None and keys_at.start is not None:
        first = at.start - keys_at.start
        return first - keys_at.tokens + 1, first + at.tokens - 1
    whole = at.axes == keys_at.axes and not (at.coords.is_floating_point() or keys_at.coords.is_floating_point())
    if not whole or at.extent is None or keys_at.extent is None:
        return None
    return 1 - keys_at.extent, at.extent - 1


def one_query_range(at: Positions, keys_at: Positions) -> range | None:
    """Return the distances of one query to contiguous keys, first key first; None for more queries, or unknown.

    In a compiled graph they would be constants of one token, so it is None there.
    """
    if at.tokens != 1 or at.start is None or keys_at.start is None or torch.compiler.is_compiling():
        return None
    first = at.start - keys_at.start
    return range(first, first - keys_at.tokens, -1)


def split_far(distances: range, same_beyond: int | None) -> tuple[int, range]:
    """Return the number of far keys, and the near distances, at least one. The first near vector serves far keys."""
    far = 0 if same_beyond is None else min(max(distances.start - same_beyond, 0), len(distances) - 1)
    return far, distances[far:]


def spread_heads(values: Tensor, axis: int, heads: Sequence[int], total_heads: int) -> Tensor:
    """Return values of some heads, along an axis, as values of all heads: 0 for the others."""
    shape = [total_heads if dim == axis else size for dim, size in enumerate(values.shape)]
    return values.new_zeros(shape).index_copy(axis, number_tensor(heads, torch.long, values.device), values)


def product(q: Tensor, k: Tensor) -> Tensor:
    """Return q k^T [B, H, T, S] in float32 at least. Several query heads may share a key head."""
    k = k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype) @ k.to(dtype).transpose(-1, -2)


def total(biases: Sequence[Bias], dtype: torch.dtype) -> Tensor | None:
    """Return the sum of biases, [1 or B, 1 or H, 1 or T, S]; None without biases."""
    return reduce(torch.add, (bias.dense(dtype) for bias in biases)) if biases else None


def check_head_rows(encoding: object, values: Tensor, axes: int, heads: int | None) -> None:
    """Raise ValueError unless a bias has shape [H, ...]: H query heads, then `axes` axes of distances."""
    if values.dim() != axes + 1:
        number = heads or "H"
        raise ValueError(
            f"{encoding} gave a bias of shape {list(values.shape)}, expected [{number}, ...]: an axis of {number} "
            f"heads, then those of the distances, as in values.expand({number}, *delta.shape)"
        )
    if heads is not None:
        checks.built_for(encoding, "heads", values.shape[0], heads, "{} heads")


def module_of(method: Callable) -> nn.Module:
    """Return the module of a bound method.

    Raises ValueError for any other function, whose parameters would be unknown.
    """
    module = getattr(method, "__self__", None)
    if not isinstance(module, nn.Module):
        raise ValueError(f"a bias is made of a method of a module, such as self.score_mod, got {method!r}")
    return module


def facts_of(
    keys: Keys, *, memo: Mapping[str, Tensor] | None = None, query_memo: Mapping[str, Tensor] | None = None
) -> Keys:
    """Return keys with more facts of the key tokens (`memo`) and the query tokens (`query_memo`)."""
    return replace(keys, memo={**keys.memo, **(memo or {})}, query_memo={**keys.query_memo, **(query_memo or {})})
