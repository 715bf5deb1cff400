"""Sums along a sequence, by order and document and never by index: the operators behind encodings that accumulate."""

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.keys import Keys
from posenc.encoding.precision import most_exact
from posenc.tokens.positions import Positions


def sums_after(values: Tensor, keys_at: Positions) -> Tensor:
    """For values [B, H, T, S] of each pair, the sum over all keys whose order is later than key j's, [B, H, T, S].

    What must not count is 0 in `values`. Keys go by their order, wherever they stand in the tensor. Each sum starts at
    the last key, so that the short sums near a query keep their precision.

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
    """Running sums of a remembered fact [B, H, S, ...]: up to each query, [B, H * ..., T], and key, [B, H * ..., S].

    As `sums_to` has them, in float64 where the device has it; the encoding names the fact in `between`.
    """
    if name in keys.summed:
        return in_rows_of_tokens(keys.query_memo[name]), in_rows_of_tokens(keys.memo[name])
    return sums_to(in_rows_of_tokens(most_exact(keys.memo[name])), at, keys.at)


def in_rows_of_tokens(fact: Tensor) -> Tensor:
    """A fact [B, H, S, ...] of each token with the tokens last, [B, H * ..., S]."""
    return fact if fact.dim() == 3 else fact.flatten(3).transpose(2, 3).flatten(1, 2)


def sums_to(values: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
    """Running sums of a fact of each key token, values [B, H, S], up to each query [B, H, T] and each key [B, H, S].

    The sum over the tokens l with order_j < order_l <= order_i is to_query[i] - to_key[j], for a key j at or before the
    query i in the same document. Tokens go by their order within their document, wherever they stand in the tensor;
    padding and empty cache slots count nothing.
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
        # Documents behind one another on one line: a place on it is the document's, then the token's.
        room = torch.maximum(i.amax(), j.amax()) + 2
        i, j = (order + 1 + document * room for order, document in ((i, at.document), (j, keys_at.document)))
    place, sequence = j.contiguous().sort(dim=-1, stable=True)
    spread = sequence[:, None].expand(-1, H, -1)
    running = values.masked_fill(~present[:, None], 0.0).gather(-1, spread).cumsum(-1)
    to_key = torch.zeros_like(running).scatter(-1, spread, running)
    before = torch.searchsorted(place, i.contiguous(), right=True)[:, None].expand(-1, H, -1)
    return F.pad(running, (1, 0)).gather(-1, before), to_key
