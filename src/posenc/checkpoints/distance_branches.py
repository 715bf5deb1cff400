"""Distance maps without gradients on the CPU: each branch meets the keys for which it holds, in fused attention."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from posenc.distance_maps import DistanceMap
from posenc.encoding import Encoding, parts_of
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.blocked import as_fused_attention_takes, fused, merged
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions


def distance_map_of(encoding: Encoding) -> DistanceMap | None:
    """The distance map of an encoding that besides only turns queries and keys; None where there is none, or more."""
    maps = [part for part in parts_of(encoding) if isinstance(part, DistanceMap)]
    others = [part for part in parts_of(encoding) if part not in maps]
    if len(maps) != 1 or maps[0].doors != {"attend"} or any(part.doors - {"turn"} for part in others):
        return None
    return maps[0]


def why_not(q: Tensor, keys: Keys, *, dropout: float, weights: bool) -> str | None:
    """Why attention by branches cannot serve, or None."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, keys.k, keys.v)):
        return "attention by branches has no gradient"
    if dropout or weights:
        return "attention by branches has neither dropout nor weights"
    return None if q.device.type == "cpu" else "attention by branches is for the CPU"


def attend_by_branches(
    encoding: DistanceMap, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, scale: float
) -> Tensor:
    """The output [B, H, T, E] of a distance map on q [B, H, T, D] and unturned keys.

    It is what `encoding.attend` gives, for less: keys are turned once for each branch and not once for each block of
    queries, no pair is computed for two branches but where they meet, and nothing of the size of the logits is in
    memory. A query that may see nothing takes zeros.
    """
    branches = encoding.branches()
    m, n = at.axis(encoding), keys.at.axis(encoding)

    @cache
    def turned(which: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys where a branch puts them, -1 being where they are, as fused attention takes them."""
        if which < 0:
            there = at, keys.at
        else:
            there = at.with_coords(branches[which].queries(m)), keys.at.with_coords(branches[which].keys(n))
        inner = encoding.encoding
        return as_fused_attention_takes(inner.turn(q, there[0], "query"), inner.turn(keys.k, there[1], "key"), keys.v)

    out = q.new_zeros(*q.shape[:3], keys.v.shape[-1])
    for start in range(0, at.tokens, SIZES.rows):
        rows = slice(start, min(start + SIZES.rows, at.tokens))
        few, few_m = at.rows(rows), m[:, rows, None]
        given = mask.given
        if given is not None and given.dim() > 1 and given.shape[-2] > 1:
            given = given[..., rows, :]
        seen = replace(mask, given=given)
        left = seen.allowed(few, keys.at)
        seen, added = seen.split()
        parts = []
        for which in (*range(len(branches)), -1):
            here = left
            if which >= 0:
                here = left & branches[which].holds(few_m, n[:, None])[:, None]
                left = left & ~here
            if (part := part_of(turned, which, rows, here, added, scale)) is not None:
                parts.append(part)
        if parts:
            out[:, :, rows] = merged(parts)[0][..., : out.shape[-1]]
    return out


def part_of(
    turned: Callable[[int], tuple[Tensor, Tensor, Tensor]],
    which: int,
    rows: slice,
    here: Tensor,
    added: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor] | None:
    """What some queries take by one branch from the keys `here`, boolean [B or 1, 1 or H, n, S]; None from no key."""
    columns = here.flatten(0, -2).any(0).nonzero()
    if not len(columns):
        return None
    seen = slice(int(columns[0]), int(columns[-1]) + 1)
    q, k, v = turned(which)
    here, logits = here[..., seen], None
    if added is not None or not bool(here.all()):
        logits = torch.zeros(1, 1, 1, 1) if added is None else added.expand(*added.shape[:-1], k.shape[2])[..., seen]
        logits = logits.to(torch.promote_types(q.dtype, torch.float32)).masked_fill(~here, -torch.inf)
        logits = logits.expand(*logits.shape[:2], rows.stop - rows.start, -1).contiguous()
    return fused(q[:, :, rows], k[:, :, seen], v[:, :, seen], logits, scale, alone=False)
