"""Merging attention over parts of the keys by log-sum-exp."""

import math

import torch
from torch import Tensor


def merge_parts(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the output and log-sum-exp over all keys, from those over parts of the keys."""
    sums = torch.stack([total for _, total in parts])
    total = sums.logsumexp(0)
    shares = (sums - finite(total)).exp()
    output = sum(share[..., None] * values for share, (values, _) in zip(shares, parts, strict=True))
    return output, total


def finite(sums: Tensor) -> Tensor:
    """Return the log-sum-exp with 0 for empty rows, so that -inf minus it stays -inf."""
    return sums.masked_fill(sums == -math.inf, 0.0)


def exact_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of logits: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
