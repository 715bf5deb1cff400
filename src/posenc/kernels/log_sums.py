"""Attention over all keys from attention over some of them each, by the logarithms of their sums of exponentials."""

import math

import torch
from torch import Tensor


def merged(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over all keys and the logarithm of its sums, from attention over some of them each."""
    sums = torch.stack([total for _, total in parts])
    total = sums.logsumexp(0)
    shares = (sums - finite(total)).exp()
    out = sum(share[..., None] * taken for share, (taken, _) in zip(shares, parts, strict=True))
    return out, total


def finite(sums: Tensor) -> Tensor:
    """Logarithms of sums, with 0 for that of no keys: what is -inf stays so when it is subtracted."""
    return sums.masked_fill(sums == -math.inf, 0.0)


def exact_dtype(x: Tensor) -> torch.dtype:
    """The dtype of logits: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
