"""Attention weights of chosen rows, heads and layers, in bounded memory.

Queries are independent of one another given the keys, whatever the attention rule: the readable kernel is asked for a
few of them at a time, beside the output that comes from any kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import kernels
from posenc.encoding.base import Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import few
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

Choice: TypeAlias = int | slice | Sequence[int] | None
"""Some of a number of things: one, a slice, several, or None for all. Numbers below 0 count from the end."""

LOGITS_AT_ONCE = 1 << 21
"""How many logits are held at a time, in all heads and rows of a batch."""


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
    >>> out, weights = attention(torch.randn(1, 9, 32), need_weights=Chosen(rows=-1, heads=(0, 2)))
    >>> weights.shape
    torch.Size([1, 2, 1, 9])
    """

    rows: Choice = None
    heads: Choice = None
    layers: Choice = None


def chosen_weights(
    chosen: Chosen,
    encoding: Encoding,
    q: Tensor,
    at: Positions,
    keys: Keys,
    mask: Mask,
    kernel: BoundKernel,
) -> Tensor:
    """The weights of chosen rows and heads [B, heads, rows, S].

    q [B, H, T, D], the keys and the kernel are as attention has them, turned and bound already. Raises ValueError as
    Chosen does.
    """
    if chosen.layers is not None:
        raise ValueError(f"layers are chosen in a model, and this is one layer; leave out layers={chosen.layers}")
    rows, heads = numbers(chosen.rows, q.shape[2], "row"), numbers(chosen.heads, q.shape[1], "head")
    S = keys.k.shape[2]
    at_once = max(1, LOGITS_AT_ONCE // (q.shape[0] * q.shape[1] * S))
    index = torch.tensor(heads, device=q.device)
    of_layer: dict[str, Any] = {"scale": kernel.scale, "sinks": kernel.sinks, "softcap": kernel.softcap}
    kernel = kernels.bind("reference", encoding, need_weights=True, **of_layer)
    blocks = []
    for begin in range(0, len(rows), at_once):
        inputs = few(some(rows[begin : begin + at_once], at), q, at, keys, mask, drop_future=True)
        weights = encoding.attend(*inputs, kernel)[1]
        assert weights is not None
        picked = weights if heads == list(range(q.shape[1])) else weights[:, index]
        blocks.append(F.pad(picked, (0, S - picked.shape[-1])))
    return torch.cat(blocks, 2)


def some(rows: Sequence[int], at: Positions) -> slice | Tensor:
    """The rows as a slice where they follow one another, else as indices."""
    follow = list(rows) == list(range(rows[0], rows[0] + len(rows)))
    return slice(rows[0], rows[-1] + 1) if follow else torch.tensor(rows, device=at.order.device)


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
