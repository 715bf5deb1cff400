"""Biases as values: what door 3 of an encoding gives, and what kernels dispatch on.

A bias is a number for each query, key and head, added to the scaled logit. It comes in eight forms, and each says all
that any kernel may ask: what it is made of, how it is had on a whole grid, and how it is put on chosen heads. In the
list of biases stands as well what a rule adds to values (ValueVectors).

ByDistance   a function of the signed distance alone (ALiBi, T5)
Pairs        a closure for each pair of tokens (CoPE, FIRE)
Products     such a closure that for whole distances is a sum of dot products with vectors of the distance (Shaw)
Levels       such a closure that is a difference of two levels (forgetting)
Counts       such a closure that looks up a sum of gates between the two tokens (CoPE)
Factored     a dot product of a vector of the query and one of the key (TUPE)
Dense        numbers for all pairs (a floating mask, what a rule of door 4 has computed)
Branched     other queries and keys for some of the pairs (distance maps of rotary)
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
from posenc.encoding.score_mods import ScoreMod, at_token, dot_products, index_grids, looked_up, of_heads, placed_on
from posenc.tokens.positions import Positions, distance
from posenc.tokens.shared_tables import numbers
from posenc.tokens.watched import is_watched, is_written_down, may_be_read

Own = TypeVar("Own", bound="Bias")

BIASES = frozenset({"by_distance", "biases"})
"""The two ways into door 3."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Bias:
    """What all forms have in common.

    chosen   which heads of the model the bias is for, one for each of its own; None: its heads are the model's
    of       how many heads the model has, where some are chosen
    """

    chosen: tuple[int, ...] | None = None
    of: int = 0

    def on(self: Own, heads: Sequence[int], of: int) -> Own:
        """The same bias on these of `of` heads; the others have none."""
        chosen = tuple(heads) if self.chosen is None else tuple(heads[head] for head in self.chosen)
        return replace(self, chosen=chosen, of=of)

    def spread(self, values: Tensor, axis: int) -> Tensor:
        """Values of the bias's heads as values of the model's: 0 for heads without it; one that heads share stays."""
        if self.chosen is None:
            return values
        if values.shape[axis] == 1 != len(self.chosen):
            values = values.expand(*(len(self.chosen) if i == axis else -1 for i in range(values.dim())))
        return among_heads(values, axis, self.chosen, self.of)

    @property
    def module(self) -> nn.Module | None:
        """Whose parameters the bias reads beside the tensors that it holds."""
        return None

    def closure(self) -> ScoreMod:
        """The bias pair by pair, as FlexAttention has it."""
        raise NotImplementedError

    def fused(self, dtype: torch.dtype) -> ScoreMod:
        """The closure of sums and entries of tables alone, as a fused GPU kernel takes it."""
        return self.closure()

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The bias on the whole grid, [1 or B, 1 or H, 1 or T, S], without any mask."""
        raise NotImplementedError

    def added_to(self, logits: Tensor) -> Tensor:
        """The logits [B, H, T, S] with the bias."""
        return self.closure()(logits, *index_grids(logits))


@dataclass(frozen=True, eq=False)
class ByDistance(Bias):
    """A function of the signed distance alone: bias(h, i, j) = f_h(m_i - n_j).

    encoding      what has the function, of distances [...], or [..., A] where its `axes` are not 1
    at, keys_at   where queries and keys are
    heads         how many heads there are to be; None where nobody knows
    function      the name of its method
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
        """The bias [H, ...] at distances [...], or [..., A].

        Raises ValueError unless there is a row for each query head: one row would broadcast unseen.
        """
        values = getattr(self.encoding, self.function)(delta)
        check_heads(self.encoding, values, delta.dim() - (self.axes != 1), self.heads)
        return self.spread(values, 0)

    def along(self, delta: Tensor) -> Tensor:
        """The bias [H, n] at distances [n] on one axis, or [n, A] on several."""
        return self.values(delta if self.axes == 1 or delta.dim() > 1 else delta[:, None])

    def closure(self) -> ScoreMod:
        m, n = (where.coordinates(self.axes, self.encoding) for where in (self.at, self.keys_at))

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            values = self.values(at_token(m, b, i) - at_token(n, b, j))
            return score + of_heads(values, h).to(score.dtype)

        return score_mod

    def fused(self, dtype: torch.dtype) -> ScoreMod:
        axes, known = self.at.axes, distances_between(self.at, self.keys_at)
        lowest, highest = known or (0, 0)
        size = highest - lowest + 1
        if known is None or self.axes not in (0, axes) or size**axes > self.at.tokens * self.keys_at.tokens:
            return looked_up(self.dense(dtype))
        delta = torch.arange(highest, lowest - 1, -1, device=self.at.device)
        table = self.along(torch.cartesian_prod(*[delta] * axes)).to(dtype)
        of_queries, of_keys = entry_numbers(self.at, self.keys_at, [(highest, size)] * axes)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + table[h, at_token(of_queries, b, i) + at_token(of_keys, b, j)].to(score.dtype)

        return score_mod

    @cached_property
    def grids(self) -> dict[Any, Tensor]:
        """What was computed on the whole grid, for layers that share the bias; a copy starts with none."""
        return {}

    def dense(self, dtype: torch.dtype) -> Tensor:
        if torch.compiler.is_compiling() or is_watched():
            return self.on_grid(dtype)
        key = dtype, torch.is_grad_enabled()
        if key not in self.grids:
            self.grids[key] = self.on_grid(dtype)
        return self.grids[key]

    def in_sight(self, before: int, dtype: torch.dtype) -> Tensor:
        """The bias [1, H, T, S] of tokens in a row, -inf but for the keys 0..i + before of query i; for axes of 1."""
        T, S, device = self.at.tokens, self.keys_at.tokens, self.at.device
        key = before, dtype, torch.is_grad_enabled()
        if key not in self.grids:
            vector = self.along(torch.arange(before + T - 1, -1, -1, device=device)).to(dtype)
            vector = F.pad(vector, (0, 1), value=-math.inf)
            index = places_in_row(T, S, device).clamp(max=before + T).expand(vector.shape[0], T, S)
            grid = vector[:, None].expand(-1, T, -1).gather(-1, index)[None]
            if is_watched():
                return grid
            self.grids[key] = grid
        return self.grids[key]

    def on_grid(self, dtype: torch.dtype) -> Tensor:
        at, keys_at = self.at, self.keys_at
        met = met_by_one_query(at, keys_at) if self.axes <= 1 else None
        if met is not None:
            return self.along(whole(met, at.device)).to(dtype)[None, :, None]
        offset = steps_between(at, keys_at) if self.axes <= 1 else None
        if offset is not None:
            # T queries and S keys in a row are only T + S - 1 distances apart; a gather spreads them into the matrix.
            # (Unfold would too, but it compiles anew for every length, and its gradient is slower.)
            T, S, device = at.tokens, keys_at.tokens, at.order.device
            vector = self.along(torch.arange(offset + T - 1, offset - S, -1, device=device))  # [H, T + S - 1]
            index = places_in_row(T, S, device).expand(vector.shape[0], T, S)
            return vector.to(dtype)[:, None].expand(-1, T, -1).gather(-1, index)[None]  # [1, H, T, S]
        values = self.looked_up()
        if values is None:
            values = self.values(distance(at, keys_at, self.encoding, self.axes))  # [H, B or 1, T, S]
        return values.movedim(0, 1).to(dtype)

    def looked_up(self) -> Tensor | None:
        """The bias [H, B or 1, T, S], each whole distance evaluated once; None where not fewer."""
        at, keys_at = self.at, self.keys_at
        if not (at.axes == keys_at.axes == self.axes and at.coords.is_cpu and may_be_read(at.coords, keys_at.coords)):
            return None
        distances = whole_distances(at, keys_at)
        if distances is None or math.prod(map(len, distances)) > at.tokens * keys_at.tokens:
            return None
        of_queries, of_keys = entry_numbers(at, keys_at, [(met.start, len(met)) for met in distances])
        index = of_queries[:, :, None] + of_keys[:, None]
        table = self.along(torch.cartesian_prod(*(whole(met, at.device) for met in distances)))
        return table.index_select(1, index.flatten()).unflatten(1, index.shape)

    def pairs(self, q: Tensor, keys: Keys) -> "Pairs":
        """The same bias pair by pair, for what cannot be tabulated."""
        keys = Keys(keys.k, keys.k, self.keys_at)
        q = q if self.chosen is None else q[:, list(self.chosen)]
        closure = partial(closure_by_distance, function=self.function)
        bias = Pairs(MethodType(closure, self.encoding), q, self.at, keys, reads_between=False)
        return replace(bias, chosen=self.chosen, of=self.of)


def closure_by_distance(encoding: Any, q: Tensor, at: Positions, keys: Keys, *, function: str) -> ScoreMod:
    """What `ByDistance.pairs` is made of."""
    return ByDistance(encoding, at, keys.at, heads=q.shape[1], function=function).closure()


@dataclass(frozen=True, eq=False)
class Pairs(Bias):
    """A closure for each pair of tokens, for what needs more than a distance.

    score_mod      a method of a module: (q, at, keys) -> closure. It reads nothing but these and the module's own
                   constants and parameters, and so can be asked for some queries and keys alone
    q              queries [B, H, T, D]
    at             where they are
    keys           keys, with facts of tokens that cost more than a pair should: `memo` of keys, `query_memo` of queries
    facts          adds such facts to keys, when pairs are to be evaluated; None where there are none to add
    reads_between  whether the closure reads, for a query and a key, the keys between the two as well, and so is given
                   them. Say False where each pair stands alone: it then costs less in blocks
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

    def known(self) -> Keys:
        """The keys with all facts that the closure reads."""
        return self.keys if self.facts is None else self.facts(self.keys)

    def closure(self) -> ScoreMod:
        return self.placed(self.score_mod(self.q, self.at, self.known()))

    def placed(self, modify: ScoreMod) -> ScoreMod:
        """A closure of the bias's heads as one of the model's."""
        return modify if self.chosen is None else placed_on(self.chosen, self.of, modify, self.q.device)

    def dense(self, dtype: torch.dtype) -> Tensor:
        nothing = self.q.new_zeros((*self.q.shape[:3], self.keys.at.tokens), dtype=dtype)
        return self.spread(self.score_mod(self.q, self.at, self.known())(nothing, *index_grids(nothing)), 1)

    def backwards(self, module: nn.Module, q: Tensor, at: Positions, keys: Keys, dtype: torch.dtype) -> Tensor:
        """The bias [B, H, n, m] of some tokens, last query first, by a module that stands in for its own."""
        modify = MethodType(cast(MethodType, self.score_mod).__func__, module)(q, at, keys)
        nothing = q.new_zeros((*q.shape[:3], keys.at.tokens), dtype=dtype)
        return self.spread(modify(nothing, *index_grids(nothing, backwards=True)), 1)


class DotProducts(NamedTuple):
    """Dot products with a vector of the distance, in float32 at least: bias(i, j) = asked_i . vectors[m_i - n_j].

    asked    [B, H, T, C]    what each query is multiplied with
    vectors  [1 or H, n, C]  that of each distance that was asked for, in their order; or one for all of them
    of_keys  whether it is keys that are multiplied, asked [B, H, S, C]: bias(i, j) = asked_j . vectors[m_i - n_j]
    """

    asked: Tensor
    vectors: Tensor
    of_keys: bool = False


@dataclass(frozen=True, eq=False)
class Products(Pairs):
    """A closure that for whole distances is a sum of dot products with vectors of the distance.

    products     the whole distances that tokens in a row meet -> DotProducts, one or more
    same_beyond  the distance (positions) from which on, either way, the vectors are the same; None where they never are
    """

    products: Callable[[range], Sequence[DotProducts]] = field(kw_only=True)
    same_beyond: int | None = field(default=None, kw_only=True)
    reads_between: bool = False

    def dense(self, dtype: torch.dtype) -> Tensor:
        met = met_by_one_query(self.at, self.keys.at)
        if met is not None:
            return self.of_one_query(met).to(dtype)
        # In a graph the distances would be numbers of one length alone.
        in_graph = torch.compiler.is_compiling() or is_written_down()
        offset = None if in_graph else steps_between(self.at, self.keys.at)
        return super().dense(dtype) if offset is None else self.in_row(offset).to(dtype)

    def in_row(self, offset: int) -> Tensor:
        """The bias [B, H, T, S] of tokens in a row: each is multiplied with every vector once, and pairs look it up."""
        T, S, device = self.at.tokens, self.keys.at.tokens, self.q.device
        index, added = places_in_row(T, S, device), torch.zeros((), device=device)
        for asked, vectors, of_keys in self.dot_products(range(offset + T - 1, offset - S, -1)):
            products, place = asked @ vectors.transpose(-1, -2), index.mT if of_keys else index
            place = place.clamp(max=products.shape[-1] - 1)
            values = products.gather(-1, place.expand(*products.shape[:2], *place.shape))
            added = added + (values.mT if of_keys else values)
        return added

    def of_one_query(self, met: range) -> Tensor:
        """The bias [B, H, 1, S] of one query, from the vectors of near keys: those of the first stand for farther."""
        far, near = beyond(met, self.same_beyond)
        added = None
        for asked, vectors, of_keys in self.dot_products(near):
            if of_keys:
                first = (asked[:, :, :far] * vectors[:, :1]).sum(-1)
                values = torch.cat((first, (asked[:, :, far:] * vectors).sum(-1)), -1)[:, :, None]
            else:
                values = asked @ vectors.transpose(-1, -2)
                values = torch.cat((values[..., :1].expand(-1, -1, -1, far), values), -1) if far else values
            added = values if added is None else added + values
        assert added is not None
        return added

    def dot_products(self, distances: range) -> list[DotProducts]:
        """What there is to multiply for these distances, for the heads of the model."""
        found = list(self.products(distances))
        if self.chosen is None:
            return found
        return [
            term._replace(
                asked=self.spread(term.asked, 1),
                vectors=term.vectors if term.vectors.shape[0] == 1 else self.spread(term.vectors, 0),
            )
            for term in found
        ]


@dataclass(frozen=True, eq=False)
class Counts(Pairs):
    """A closure that reads, in a table of each query, how many of the tokens from a key to the query are counted.

    bias(i, j) = table_i[min(sum of sigmoid(rate * q_i . k_l) over order_j <= order_l <= order_i, last entry)], read by
    linear interpolation between entries.

    rate   factor of q . k in the gates
    table  the queries [B, H, T, D] -> their tables [B, H, T, entries], in float32 at least
    """

    rate: float = field(kw_only=True)
    table: Callable[[Tensor], Tensor] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Levels(Pairs):
    """A closure that, for a key no later than its query in the same document, is a difference of levels.

    bias(i, j) = of_queries_i - of_keys_j, in float64 where the device has it. What other keys get the closure says.

    of_queries  [B, H, T]
    of_keys     [B, H, S]
    """

    of_queries: Tensor = field(kw_only=True)
    of_keys: Tensor = field(kw_only=True)
    reads_between: bool = False

    def dense(self, dtype: torch.dtype) -> Tensor:
        met = met_by_one_query(self.at, self.keys.at)
        if met is None or met[-1] < 0:
            return super().dense(dtype)
        of_query, of_keys = self.levels()
        return (of_query[..., None] - of_keys[:, :, None]).to(dtype)

    def levels(self) -> tuple[Tensor, Tensor]:
        """The levels of queries and of keys, for the heads of the model."""
        return self.spread(self.of_queries, 1), self.spread(self.of_keys, 1)


@dataclass(frozen=True, eq=False)
class Factored(Bias):
    """Dot products of a vector of each query token and one of each key token, in float32 at least.

    of_queries  [1 or B, H, T, C]
    of_keys     [1 or B, H, S, C]
    """

    of_queries: Tensor
    of_keys: Tensor

    def factors(self) -> tuple[Tensor, Tensor]:
        """The vectors of queries and of keys, for the heads of the model."""
        return self.spread(self.of_queries, 1), self.spread(self.of_keys, 1)

    def closure(self) -> ScoreMod:
        of_queries, of_keys = self.factors()

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + dot_products(of_queries, of_keys, b, h, i, j).to(score.dtype)

        return score_mod

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.spread(self.of_queries @ self.of_keys.transpose(-1, -2), 1).to(dtype)


@dataclass(frozen=True, eq=False)
class Dense(Bias):
    """Numbers for all pairs.

    logits  broadcastable to [B, H, T, S], floating
    """

    logits: Tensor

    def closure(self) -> ScoreMod:
        return looked_up(self.dense(self.logits.dtype))

    def dense(self, dtype: torch.dtype) -> Tensor:
        logits = self.logits[(None,) * (4 - self.logits.dim())]
        return self.spread(logits, 1).to(dtype)

    def added_to(self, logits: Tensor) -> Tensor:
        return logits + self.dense(logits.dtype)


class Branch(NamedTuple):
    """Other queries and keys for some of the pairs.

    q      [B, H, T, D]
    k      [B, KV, S, D]
    holds  (m, n) -> whether it is for a query at m and a key at n; both are coordinates that broadcast
    """

    q: Tensor
    k: Tensor
    holds: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Branched(Bias):
    """Other queries and keys for some of the pairs, as what their product has more than the kernel's own.

    bias(i, j) = scale * (q'_i . k'_j - q_i . k_j), of the first branch that holds for i and j; 0 where none does

    q, k         the kernel's own queries [B, H, T, D] and keys [B, KV, S, D]
    branches     the others
    at, keys_at  where queries and keys are, on one axis
    scale        factor of the logits
    name         what the branches are known by: others are for other pairs
    """

    q: Tensor
    k: Tensor
    branches: Sequence[Branch]
    at: Positions
    keys_at: Positions
    scale: float
    name: str

    def closure(self) -> ScoreMod:
        return looked_up(self.dense(torch.promote_types(self.q.dtype, torch.float32)))

    def dense(self, dtype: torch.dtype) -> Tensor:
        own = product(self.q, self.k) * self.scale
        mapped = own
        everything = slice(None)
        for branch, here in zip(self.branches, self.holding(everything, everything, everything), strict=True):
            mapped = torch.where(here[:, None], product(branch.q, branch.k) * self.scale, mapped)
        return self.spread((mapped - own).to(dtype), 1)

    def branch_of(self, m: Tensor, n: Tensor) -> Tensor:
        """The number of the branch for queries at m and keys at n, from 1; 0 where none holds."""
        number = torch.zeros_like(m - n, dtype=torch.long)
        for place, branch in reversed(list(enumerate(self.branches, 1))):
            number = torch.where(branch.holds(m, n), place, number)
        return number

    def holding(self, batch: slice, rows: slice, keys: slice) -> list[Tensor]:
        """For each branch the pairs that it is for, boolean [1 or b, n, m]: no pair is in two."""
        m, n = (where.axis("a distance map") for where in (self.at, self.keys_at))
        m, n = (coords if coords.shape[0] == 1 else coords[batch] for coords in (m, n))
        if all(where.extent is not None and where.extent < 1 << 31 for where in (self.at, self.keys_at)):
            # Half the memory to go through.
            m, n = (coords if coords.is_floating_point() else coords.int() for coords in (m, n))
        m, n = m[:, rows, None], n[:, None, keys]
        left, found = None, []
        for branch in self.branches:
            here = branch.holds(m, n)
            here = here if left is None else here & left
            left = ~here if left is None else left & ~here
            found.append(here)
        return found


@dataclass(frozen=True, eq=False)
class ValueVectors(Bias):
    """No number: what a rule adds to values by their distance, z_i = sum_j A_ij (v_j + vector(m_i - n_j)).

    vectors      the whole distances that tokens in a row meet -> their vectors [1 or H, R, E], in their order
    same_beyond  the distance (positions) from which on, either way, the vector is the same
    by_pairs     the same attention, output and weights, by a rule that reads the weights of all pairs
    """

    vectors: Callable[[range], Tensor]
    same_beyond: int
    by_pairs: Callable[[], tuple[Tensor, Tensor | None]]


def whole_distances(at: Positions, keys_at: Positions) -> tuple[range, ...] | None:
    """The distances on each axis, far keys first, of tokens anywhere; None unless coordinates are whole."""
    coords, keys = at.coords, keys_at.coords
    if coords.is_floating_point() or keys.is_floating_point() or not (coords.numel() and keys.numel()):
        return None
    ends = (coords.flatten(0, 1).aminmax(dim=0), keys.flatten(0, 1).aminmax(dim=0))
    (lowest, highest), (first, last) = ((low.tolist(), high.tolist()) for low, high in ends)
    return tuple(range(highest[a] - first[a], lowest[a] - last[a] - 1, -1) for a in range(coords.shape[-1]))


def whole(distances: range, device: torch.device | None) -> Tensor:
    """Whole distances as a tensor [n]."""
    return torch.arange(distances.start, distances.stop, distances.step, device=device)


def entry_numbers(at: Positions, keys_at: Positions, axes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """A number of each query [B or 1, T] and of each key: their sum says where a pair's distance stands among all.

    axes  of each the greatest distance, which stands first, and how many there are
    """
    of_queries = of_keys = torch.zeros((), dtype=torch.long, device=at.device)
    for axis, (farthest, size) in enumerate(axes):
        of_queries = of_queries * size + (farthest - at.coords[..., axis])
        of_keys = of_keys * size + keys_at.coords[..., axis]
    return of_queries, of_keys


def places_in_row(queries: int, keys: int, device: torch.device | None) -> Tensor:
    """Where the distance of each pair stands among the distances of tokens in a row, far keys first, [T, S]."""
    return queries - 1 - torch.arange(queries, device=device)[:, None] + torch.arange(keys, device=device)


def steps_between(at: Positions, keys_at: Positions) -> int | None:
    """How far the first query stands behind the first key, where both count up by one; None where it is not known."""
    if at is keys_at:
        return 0 if at.contiguous and at.unit_step else None
    # In a graph that is being compiled it would be a number of one call alone.
    if at.start is None or keys_at.start is None or torch.compiler.is_compiling():
        return None
    return at.start - keys_at.start


def distances_between(at: Positions, keys_at: Positions) -> tuple[int, int] | None:
    """The lowest and the highest distance (whole positions) on any axis, known without looking at data, or None."""
    if at.start is not None and keys_at.start is not None:
        first = at.start - keys_at.start
        return first - keys_at.tokens + 1, first + at.tokens - 1
    whole = at.axes == keys_at.axes and not (at.coords.is_floating_point() or keys_at.coords.is_floating_point())
    if not whole or at.extent is None or keys_at.extent is None:
        return None
    return 1 - keys_at.extent, at.extent - 1


def met_by_one_query(at: Positions, keys_at: Positions) -> range | None:
    """The distances of one query to keys in a row, first key first; None for more queries, or where it is not known.

    In a graph that is being compiled they would be numbers of one token alone.
    """
    if at.tokens != 1 or at.start is None or keys_at.start is None or torch.compiler.is_compiling():
        return None
    first = at.start - keys_at.start
    return range(first, first - keys_at.tokens, -1)


def beyond(met: range, same_beyond: int | None) -> tuple[int, range]:
    """How many first keys have what the next one has, and the distances of the others; there is always one."""
    far = 0 if same_beyond is None else min(max(met.start - same_beyond, 0), len(met) - 1)
    return far, met[far:]


def among_heads(values: Tensor, axis: int, heads: Sequence[int], of: int) -> Tensor:
    """Values of some heads, along an axis, as values of all `of` heads: 0 for the others."""
    shape = [of if i == axis else size for i, size in enumerate(values.shape)]
    return values.new_zeros(shape).index_copy(axis, numbers(heads, torch.long, values.device), values)


def product(q: Tensor, k: Tensor) -> Tensor:
    """q k^T [B, H, T, S] in float32 at least, where several query heads may share a key head."""
    k = k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype) @ k.to(dtype).transpose(-1, -2)


def total(biases: Sequence[Bias], dtype: torch.dtype) -> Tensor | None:
    """The sum of biases on the whole grid, [1 or B, 1 or H, 1 or T, S]; None where there are none."""
    return reduce(torch.add, (bias.dense(dtype) for bias in biases)) if biases else None


def check_heads(who: object, values: Tensor, axes: int, heads: int | None) -> None:
    """Raises ValueError unless a bias [H, ...] at distances of so many axes has a row for each query head."""
    if values.dim() != axes + 1:
        number = heads or "H"
        raise ValueError(
            f"{who} gave a bias of shape {list(values.shape)}, expected [{number}, ...]: an axis of {number} heads, "
            f"then those of the distances, as in values.expand({number}, *delta.shape)"
        )
    if heads is not None:
        checks.built_for(who, "heads", values.shape[0], heads, "{} heads")


def module_of(method: Callable) -> nn.Module:
    """The module that a method is of: another one may stand in for it.

    Raises ValueError for a function that is no method of a module, which would hide what it reads.
    """
    module = getattr(method, "__self__", None)
    if not isinstance(module, nn.Module):
        raise ValueError(f"a bias is made of a method of a module, such as self.score_mod, got {method!r}")
    return module


def facts_of(
    keys: Keys, *, memo: Mapping[str, Tensor] | None = None, query_memo: Mapping[str, Tensor] | None = None
) -> Keys:
    """Keys with more facts of the key tokens (`memo`), and of the query tokens (`query_memo`)."""
    return replace(keys, memo={**keys.memo, **(memo or {})}, query_memo={**keys.query_memo, **(query_memo or {})})
