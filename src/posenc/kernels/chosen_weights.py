"""Attention weights of chosen rows, heads and layers, and how far away they lie, in bounded memory.

Queries are independent of one another given the keys, whatever the attention rule: the readable kernel is asked for a
few of them at a time, beside the output that comes from any kernel.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import kernels
from posenc.encoding import Encoding
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions

Choice: TypeAlias = int | slice | Sequence[int] | None
"""Some of a number of things: one, a slice, several, or None for all. Numbers below 0 count from the end."""

LOGITS_AT_ONCE = 1 << 21
"""How many logits are held at a time, in all heads and rows of a batch."""

READS = ("order", "coordinate")


@dataclass(frozen=True)
class Chosen:
    """Which attention weights to give back beside the output: [B, heads, rows, S], as asked for and in that order.

    rows    the queries of the call
    heads   the query heads
    layers  the layers of a model; in a single layer they are left out

    Each is an int, a slice, several ints, or None for all; numbers below 0 count from the end. The output itself comes
    from whatever kernel is set. Weights are those before dropout. Without gradients memory is bounded by the weights
    asked for and a block of rows; encodings that relate every key with every other (path) need more by themselves.

    Raises ValueError for rows, heads and layers that do not exist.

    >>> from posenc import Attention
    >>> attention = Attention(32, heads=4, encoding="alibi")
    >>> out, weights = attention(torch.randn(1, 9, 32), weights=Chosen(rows=-1, heads=(0, 2)))
    >>> weights.shape
    torch.Size([1, 2, 1, 9])
    """

    rows: Choice = None
    heads: Choice = None
    layers: Choice = None


@dataclass(frozen=True)
class Histogram(Chosen):
    """How far away the weight lies: what share of it falls on each distance, as a mean over the chosen rows.

    rows, heads, layers   as in Chosen
    edges  where bins begin and the last one ends (positions, ascending): bin b holds edges[b] <= distance <
           edges[b + 1], and what lies outside counts nowhere. None: one bin for each whole distance from the nearest
           to the farthest
    reads  "order": distances in tokens; "coordinate": in positions of one axis, as encodings see them

    Distances are query minus key, so the past is positive. It comes back as Shares, in float64, without gradients, out
    of a block of rows at a time; padding counts as no row. Rules whose weights do not add up to 1 (stick-breaking) have
    shares that do not either.

    Raises ValueError as Chosen does, for fewer than two edges or edges that do not ascend, and for an unknown reading.

    >>> from posenc import Attention, masks
    >>> attention = Attention(32, heads=4, encoding="alibi")
    >>> x = torch.randn(1, 9, 32)
    >>> out, shares = attention(x, mask=masks.causal(), weights=Histogram(edges=(0, 1, 4, 9)))
    >>> shares.share.shape, shares.share.sum(-1).round(decimals=6).tolist()
    (torch.Size([1, 4, 3]), [[1.0, 1.0, 1.0, 1.0]])
    """

    edges: Sequence[float] | None = None
    reads: str = "order"

    def __post_init__(self) -> None:
        if self.reads not in READS:
            raise ValueError(f"a histogram reads {' or '.join(READS)}, got '{self.reads}'")
        edges = self.edges
        if edges is not None and not (len(edges) >= 2 and all(a < b for a, b in pairwise(edges))):
            raise ValueError(f"edges are two ascending numbers or more, got {edges!r}")


class Shares(NamedTuple):
    """What share of the attention weight falls on each distance.

    share  [B, heads, bins]  mean over the rows (unitless, float64)
    edges  [bins + 1]        where the bins begin, and where the last one ends (positions)
    """

    share: Tensor
    edges: Tensor


def chosen_weights(
    chosen: Chosen, encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, scale: float
) -> Tensor | Shares:
    """The weights of chosen rows and heads [B, heads, rows, S], or their Shares by distance.

    q [B, H, T, D] and the keys are as attention has them, turned already. Raises ValueError as Chosen does.
    """
    if chosen.layers is not None:
        raise ValueError(f"layers are chosen in a model, and this is one layer; leave out layers={chosen.layers}")
    rows, heads = numbers(chosen.rows, q.shape[2], "row"), numbers(chosen.heads, q.shape[1], "head")
    at_once = max(1, LOGITS_AT_ONCE // (q.shape[0] * q.shape[1] * keys.k.shape[2]))
    index = torch.tensor(heads, device=q.device)

    def blocks() -> Iterator[Weights]:
        kernel = kernels.bind("reference", encoding, scale=scale, weights=True)
        for begin in range(0, len(rows), at_once):
            few_at, few_keys, few_mask, taken = asking(at, keys, mask, rows[begin : begin + at_once])
            weights = encoding.attend(q[:, :, taken], few_at, few_keys, few_mask, kernel)[1]
            assert weights is not None
            picked = weights if heads == list(range(q.shape[1])) else weights[:, index]
            yield Weights(picked, few_at, few_keys.at)

    if isinstance(chosen, Histogram):
        with torch.no_grad():
            return by_distance(chosen, blocks(), at.rows(some(rows, at)), keys.at, mask)
    S = keys.k.shape[2]
    return torch.cat([F.pad(block.weights, (0, S - block.weights.shape[-1])) for block in blocks()], 2)


class Weights(NamedTuple):
    """The weights [B, heads, n, m] of a few rows on the first m keys, which are all that they can see."""

    weights: Tensor
    at: Positions
    keys_at: Positions


def asking(at: Positions, keys: Keys, mask: Mask, rows: Sequence[int]) -> tuple[Positions, Keys, Mask, slice | Tensor]:
    """The same attention for some of the queries alone, without keys that come after all of them; and the queries."""
    taken = some(rows, at)
    asking_at, given = at.rows(taken), mask.given
    if given is not None and given.dim() > 1 and given.shape[-2] > 1:
        given = given[..., taken, :]
    keys = replace(keys, own={name: fact[:, :, taken] for name, fact in keys.own.items()})
    first, last = keys.at.start, asking_at.extent
    if mask.causal and not mask.prefix and asking_at.start is not None and first is not None and last is not None:
        seen = slice(0, min(max(last - first, 1), keys.at.tokens))
        if given is not None and given.shape[-1] > 1:
            given = given[..., seen]
        memo = {name: fact[:, :, seen] for name, fact in keys.memo.items()}
        keys = replace(keys, k=keys.k[:, :, seen], v=keys.v[:, :, seen], at=keys.at.rows(seen), memo=memo)
    return asking_at, keys, replace(mask, given=given), taken


def some(rows: Sequence[int], at: Positions) -> slice | Tensor:
    """The rows as a slice where they follow one another, else as indices."""
    follow = list(rows) == list(range(rows[0], rows[0] + len(rows)))
    return slice(rows[0], rows[-1] + 1) if follow else torch.tensor(rows, device=at.order.device)


def by_distance(chosen: Histogram, blocks: Iterator[Weights], at: Positions, keys_at: Positions, mask: Mask) -> Shares:
    """The weights of blocks of rows, all of them at `at`, added up by their distance from the keys."""
    whole = chosen.edges is None
    lowest, highest = span(chosen, at, keys_at, mask) if whole else (0, 0)
    edges = torch.tensor(
        range(lowest, highest + 2) if whole else chosen.edges, dtype=torch.float64, device=keys_at.order.device
    )
    total: Tensor | None = None
    for weights, rows_at, seen_at in blocks:
        n, m = weights.shape[-2:]
        if rows_at.start is not None and seen_at.start is not None:
            # Tokens in a row are n + m - 1 distances apart, one for each diagonal.
            exact = diagonals(weights)
            farthest = rows_at.start + n - 1 - seen_at.start
            distance = torch.arange(farthest, farthest - (n + m - 1), -1, device=weights.device)[None]
        else:
            # A row of padding sees nothing, and padding is seen by nobody: their distances carry no weight.
            exact = weights.double().flatten(2)
            distance = (read(chosen, rows_at)[:, :, None] - read(chosen, seen_at)[:, None]).flatten(1)  # [B or 1, n m]
        if whole:
            # A bin lies before the first one, and one behind the last, for what counts nowhere.
            bins = (distance.floor().long() - lowest + 1).clamp(0, len(edges))
        else:
            bins = torch.bucketize(distance.double(), edges, right=True)
        if total is None:
            total = exact.new_zeros(*exact.shape[:2], len(edges) + 1)
        total.scatter_add_(2, bins[:, None].expand_as(exact), exact)
    assert total is not None
    tokens = (at.order >= 0).sum(-1).clamp(min=1)
    return Shares(total[..., 1:-1] / tokens[:, None, None], edges)


def diagonals(x: Tensor) -> Tensor:
    """The sums of the diagonals of x [..., n, m], [..., n + m - 1] in float64, from the lower left corner upwards."""
    n, m = x.shape[-2:]
    # Rows of n + m numbers, read as rows of one fewer, stand one further to the right each.
    skewed = F.pad(x.flip(-2), (0, n)).flatten(-2)[..., : n * (n + m - 1)].unflatten(-1, (n, n + m - 1))
    return skewed.sum(-2, dtype=torch.float64)


def span(chosen: Histogram, at: Positions, keys_at: Positions, mask: Mask) -> tuple[int, int]:
    """The nearest and the farthest whole distance between the rows and the keys, padding left out."""
    asking, asked = read(chosen, at), read(chosen, keys_at)
    here, there = asking[at.order.expand_as(asking) >= 0], asked[keys_at.order.expand_as(asked) >= 0]
    if not (len(here) and len(there)):
        return 0, 0
    lowest = math.floor((here.min() - there.max()).item())
    by_order = chosen.reads == "order" or (at.unit_step and keys_at.unit_step)
    if by_order and mask.causal and not mask.prefix:
        lowest = max(lowest, 0)
    return lowest, max(math.floor((here.max() - there.min()).item()), lowest)


def read(chosen: Histogram, at: Positions) -> Tensor:
    """What distances are taken of [B or 1, T]."""
    return at.order if chosen.reads == "order" else at.axis("a histogram by coordinate")


def numbers(chosen: Choice, of: int, what: str) -> list[int]:
    """The numbers from 0 to of - 1 that were chosen.

    Raises ValueError when one does not exist, or when there is none.
    """
    if chosen is None or isinstance(chosen, slice):
        picked = list(range(of))[slice(None) if chosen is None else chosen]
    else:
        picked = [chosen] if isinstance(chosen, int) else list(chosen)
    if not picked:
        raise ValueError(f"{what}s={chosen} holds none of the {of} {what}s; choose one at least")
    for number in picked:
        if not -of <= number < of:
            raise ValueError(f"no {what} {number}: there are {of}, from 0 to {of - 1}, or from {-of} to -1")
    return [number % of for number in picked]
