"""How far back keys weigh anything: where a bias falls along the sequence, heads do without the keys beyond.

Without its bias no logit of a head is larger than L = |scale| max |q| max |k|. So a key whose bias lies by f below
that of the query's own key has at most e^(2 L - f) of its weight. Where that is eps^2, with the eps of the dtype of
logits, the key is left out: eight million such keys together are what float32 rounds. Steep slopes of ALiBi, and gates
that forget, look no further back than some hundred tokens, however long the sequence is; and weights below the normal
numbers, which slow a processor down, hardly come about.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.kernels.biases import SumInBlocks
from posenc.kernels.biases.distances import DistancesInRow
from posenc.kernels.biases.levels import LevelsInRow
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.plan import Plan
from posenc.watched import may_be_read

TOGETHER = 32
"""So many queries are asked for together how far back they look."""

SAMPLE = 64
"""How many tokens are asked first."""

WORTH = 0.15
"""The share of all pairs that has to be left out: of fewer, finding out costs as much."""


class Group(NamedTuple):
    """Key heads that are computed together.

    heads    which, a slice
    windows  for each of them how many keys its queries look at, their own and those before it
    """

    heads: slice
    windows: list[int]


def together(windows: Sequence[int], batch: int, queries: int, keys: int, of_one: int) -> list[Group]:
    """Key heads in their order, those together that look about as far back; `of_one` query heads share each."""
    cost = {window: batch * of_one * pairs(queries, keys - queries, window) for window in {*windows}}
    # A group of its own is computed in calls of its own.
    calls = SIZES.pairs_of_a_call * math.ceil(queries / SIZES.rows)
    found = [Group(slice(0, 1), [windows[0]])]
    for head, window in enumerate(windows[1:], 1):
        heads, before = found[-1]
        wider = max(window, *before)
        if (len(before) + 1) * cost[wider] <= len(before) * cost[max(before)] + cost[window] + calls:
            found[-1] = Group(slice(heads.start, head + 1), [*before, window])
        else:
            found.append(Group(slice(head, head + 1), [window]))
    return found


def pairs(queries: int, offset: int, window: int) -> int:
    """How many pairs of one head are gone through: queries in a row in blocks, with `offset` keys before the first."""
    total = 0
    for start in range(0, queries, SIZES.rows):
        stop = min(start + SIZES.rows, queries)
        total += (stop - start) * min(offset + stop, window - 1 + stop - start)
    return total


def windows(bias: SumInBlocks, q: Tensor, k: Tensor, plan: Plan, scale: float) -> list[int] | None:
    """For each key head how many keys its queries look at, their own and those before it; None where all may count.

    Only for tokens that are known to stand in a row, each of which sees its own key and none behind it, and for biases
    of the distance and differences of levels alone: what else is added could lift what has fallen.
    """
    T, (KV, S), row = q.shape[2], k.shape[1:3], plan.row
    # Of fewer keys hardly any are left out.
    if S <= 2 * SIZES.rows or row is None or not 0 <= row.offset == S - T:
        return None
    if not plan.mask.causal or plan.mask.given is not None or not may_be_read(q, k):
        return None
    in_row = [form for form in bias.forms if isinstance(form, DistancesInRow) and form.inputs]
    of_levels = [form for form in bias.forms if isinstance(form, LevelsInRow)]
    others = [form for form in bias.forms if not isinstance(form, (DistancesInRow, LevelsInRow))]
    if others or not (in_row or of_levels):
        return None
    # How far a bias falls to such a weight where all logits are alike.
    enough = -2 * math.log(torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps)
    falls = falls_of(in_row[0]) if in_row else None
    levels = None
    if of_levels:
        levels = functools.reduce(torch.add, [form.of_keys.detach() for form in of_levels])
        # Levels that rise somewhere could bring back what distances let fall.
        if not bool((levels[..., 1:] <= levels[..., :-1]).all()):
            return None
    # To its first key a bias falls most, or hardly any keys are beyond its reach: most biases are known by that.
    fallen = [] if falls is None else [-float(falls[:, -1].amin())]
    fallen += [] if levels is None else [float((levels[..., 0] - levels[..., -1]).amax())]
    if max(fallen) <= enough:
        return None
    every, found = KV * pairs(T, row.offset, S), None
    # A few tokens tell at little cost where too few keys would be left out; how large logits are all have to tell.
    for some in (slice(0, SAMPLE), slice(None)):
        largest = abs(scale) * longest(q[:, :, some]).view(KV, -1).amax(1) * longest(k[:, :, some])
        least = enough + 2 * largest
        if not bool(least.isfinite().all()):
            return None
        found = reach_of(falls, levels, least, row.offset, S)
        if sum(pairs(T, row.offset, window) for window in found) > (1 - WORTH) * every:
            return None
    return found


def falls_of(in_row: DistancesInRow) -> Tensor:
    """How far biases lie above that of a query's own key, at the distances from 0 on: [H, n]."""
    values = in_row.inputs[0].detach()[:, : in_row.distances.index(0) + 1].flip(1)
    return values - values[:, :1]


def reach_of(falls: Tensor | None, levels: Tensor | None, least: Tensor, offset: int, keys: int) -> list[int]:
    """For each key head how many keys there are before all have fallen by `least` [KV]."""
    found = torch.full_like(least, keys).long()
    if falls is not None:
        near = of_key_heads(falls, len(least)).amax(1)
        found = torch.minimum(found, reach_of_falls(near, least))
        # Where levels fall distances may raise.
        least = least + near.amax(1).double()
    if levels is not None:
        found = torch.minimum(found, reach_of_levels(levels, least, offset))
    return found.tolist()


def longest(x: Tensor) -> Tensor:
    """The length of the longest vector of each head, of queries or keys [B, H, T, D]: [H] in float64."""
    return (
        torch.linalg.vector_norm(x.detach().to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
        .amax((0, 2))
        .double()
    )


def of_key_heads(x: Tensor, heads: int) -> Tensor:
    """x [..., H or 1, S] with the query heads of each key head together: [..., heads, H / heads, S]."""
    return x.unflatten(-2, (heads, -1)) if x.shape[-2] > 1 else x[..., None, :].expand(*x.shape[:-2], heads, 1, -1)


def reach_of_falls(falls: Tensor, least: Tensor) -> Tensor:
    """How many distances from 0 on there are before all are fallen by `least` [KV]; falls [KV, S]."""
    near = falls > -least[:, None]
    return (near * torch.arange(1, falls.shape[1] + 1, device=falls.device)).amax(1)


def reach_of_levels(levels: Tensor, least: Tensor, offset: int) -> Tensor:
    """How many keys back from its own, which it includes, a query may have to look until the level is `least` higher.

    levels [1 or B, 1 or H, S] never rise; query i stands at key i + offset. least [KV] -> [KV]. Some queries in a row
    are asked for together: none of them looks further back than the first.
    """
    rising = -of_key_heads(levels, len(least)).contiguous()
    own = rising[..., offset::TOGETHER]
    first = torch.searchsorted(rising, (own - least[:, None, None]).contiguous(), right=True)
    last = torch.arange(offset, levels.shape[-1], TOGETHER, device=levels.device) + TOGETHER - 1
    reach = last.clamp(max=levels.shape[-1] - 1) - first + 1
    return reach.amax((0, 2, 3))
