"""How far back keys weigh anything: where a bias falls along the sequence, heads do without the keys beyond.

Without its bias no logit of a head is larger than L = |scale| max |q| max |k|. So a key whose bias lies by f below
that of the query's own key has at most e^(2 L - f) of its weight. Where that is eps^2, with the eps of the dtype of
logits, the key is left out: eight million such keys together are what float32 rounds. Steep slopes of ALiBi, and gates
that forget, look no further back than some hundred tokens, however long the sequence is; and weights below the normal
numbers, which slow a processor down, hardly come about.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.biases import Bias, ByDistance, Levels
from posenc.kernels.biases.distances import at_distances
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.plan import Row
from posenc.masks import Mask
from posenc.positions import Positions
from posenc.precision import without_autocast
from posenc.watched import may_be_read


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


def windows(
    biases: Sequence[Bias], q: Tensor, k: Tensor, at: Positions, keys_at: Positions, mask: Mask, scale: float
) -> list[int] | None:
    """For each key head how many keys its queries look at, their own and those before it; None where all may count.

    Only for tokens that are known to stand in a row, each of which sees its own key and none behind it.
    """
    KV, S = k.shape[1:3]
    # Of fewer keys hardly any are left out.
    if S <= 2 * SIZES.rows or not biases:
        return None
    row = Row.of(at, keys_at, mask)
    if row is None or not mask.causal or mask.given is not None or not 0 <= row.offset == S - q.shape[2]:
        return None
    of_distance = [bias for bias in biases if isinstance(bias, ByDistance) and bias.axes <= 1]
    of_levels = [bias for bias in biases if isinstance(bias, Levels)]
    if len(of_distance) + len(of_levels) < len(biases):
        return None
    if not may_be_read(q, k):
        return None
    with torch.no_grad(), without_autocast(q):
        falls = levels = None
        if of_distance:
            values = at_distances(of_distance, torch.arange(S, device=q.device))
            falls = (values - values[:, :1]).double()
        if of_levels:
            levels = torch.stack([bias.levels()[1].double() for bias in of_levels]).sum(0)
            # Levels that rise somewhere could bring back what distances let fall.
            if not bool((levels.diff() <= 0).all()):
                return None
        # How far a bias falls to such a weight where all logits are alike.
        enough = -2 * math.log(torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps)
        if not (fallen(falls) > enough or (levels is not None and fallen(levels - levels[..., :1]) > enough)):
            return None
        least = enough + 2 * abs(scale) * longest(q).view(KV, -1).amax(1) * longest(k)
        if not bool(least.isfinite().all()):
            return None
        reach = torch.full((KV,), S, device=q.device)
        if falls is not None:
            falls = of_key_heads(falls, KV).amax(1)
            reach = torch.minimum(reach, reach_of_falls(falls, least))
            # Where levels fall distances may raise.
            least = least + falls.amax(1)
        if levels is not None:
            reach = torch.minimum(reach, reach_of_levels(levels, least, row.offset))
        return reach.tolist()


def fallen(x: Tensor | None) -> float:
    """How far a bias falls below 0."""
    return 0.0 if x is None else float(-x.amin())


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

    levels [1 or B, 1 or H, S] never rise; query i stands at key i + offset. least [KV] -> [KV].
    """
    rising = -of_key_heads(levels, len(least)).contiguous()
    own = rising[..., offset:]
    first = torch.searchsorted(rising, (own - least[:, None, None]).contiguous(), right=True)
    here = torch.arange(offset, levels.shape[-1], device=levels.device)
    return (here - first + 1).amax((0, 2, 3))
