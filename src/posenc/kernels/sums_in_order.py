"""Prefix sums along a sequence, by order and document and never by index, for encodings that accumulate."""

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.keys import Keys
from posenc.encoding.precision import most_exact
from posenc.tokens.positions import Positions


def sums_after(values: Tensor, keys_at: Positions) -> Tensor:
    """Return for each pair the sum of values [B, H, T, S] over all later keys.

    Set values that must not count to 0. Keys are sorted by order, whatever their index. Each sum starts at the last
    key, so that short sums near a query stay precise.

    >>> sums_after(torch.tensor([[[[1.0, 2.0, 4.0]]]]), Positions.count(3))
    tensor([[[[6., 4., 0.]]]])
    """
    if keys_at.contiguous:
        return from_the_end(values)
    sequence = keys_at.order.argsort(-1)[:, None, None].expand_as(values)
    return torch.zeros_like(values).scatter(-1, sequence, from_the_end(values.gather(-1, sequence)))


def from_the_end(values: Tensor) -> Tensor:
    return F.pad(values[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)


def sums_of(name: str, at: Positions, keys: Keys) -> tuple[Tensor, Tensor]:
    """Return prefix sums of a remembered fact [B, H, S, ...] at queries and keys.

    They are [B, H * ..., T] and [B, H * ..., S], in float64 if possible; see `sums_to`. `between` names the fact.
    """
    if name in keys.prefix_sums:
        return in_rows_of_tokens(keys.query_memo[name]), in_rows_of_tokens(keys.memo[name])
    return sums_to(in_rows_of_tokens(most_exact(keys.memo[name])), at, keys.at)


def in_rows_of_tokens(fact: Tensor) -> Tensor:
    """Return a fact [B, H, S, ...] with the tokens last, [B, H * ..., S]."""
    return fact if fact.dim() == 3 else fact.flatten(3).transpose(2, 3).flatten(1, 2)


def sums_to(values: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
    """Return prefix sums of values [B, H, S], at queries [B, H, T] and keys [B, H, S].

    The sum over the tokens l with order_j < order_l <= order_i is to_query[i] - to_key[j], for a key j at or before the
    query i in the same document. Tokens are sorted by order within their document, whatever their index; padding and
    empty cache slots count as 0.
    """
    if at is keys_at and at.contiguous:
        running = values.cumsum(-1)
        return running, running
    if (
        at.start is not None
        and keys_at.start is not None
        and 0 <= at.start - keys_at.start <= keys_at.tokens - at.tokens
    ):
        running = values.cumsum(-1)
        return running.narrow(-1, at.start - keys_at.start, at.tokens), running
    B, H = values.shape[:2]
    i, j = at.order.expand(B, -1), keys_at.order.expand(B, -1)
    present = j >= 0
    if at.document is not None and keys_at.document is not None:
        # One number sorts by document, then by order.
        room = torch.maximum(i.amax(), j.amax()) + 2
        i, j = (order + 1 + document * room for order, document in ((i, at.document), (j, keys_at.document)))
    place, sequence = j.contiguous().sort(dim=-1, stable=True)
    index = sequence[:, None].expand(-1, H, -1)
    running = values.masked_fill(~present[:, None], 0.0).gather(-1, index).cumsum(-1)
    to_key = torch.zeros_like(running).scatter(-1, index, running)
    keys_up_to = torch.searchsorted(place, i.contiguous(), right=True)[:, None].expand(-1, H, -1)
    return F.pad(running, (1, 0)).gather(-1, keys_up_to), to_key
