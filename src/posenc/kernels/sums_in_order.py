"""Sums over the keys that lie after a key: the operator behind encodings that accumulate for each pair."""

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.positions import Positions


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
