"""Sinks: logits of heads in the softmax without a key: no value, position, mask or cache entry."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Attend: TypeAlias = Callable[..., tuple[Tensor, Tensor | None]]


def with_sinks(output: Tensor, sums: Tensor, sinks: Tensor) -> Tensor:
    """Return the output of attention with sinks [H], from the output [B, H, T, E] without.

    out * exp(sums) / (exp(sink) + exp(sums)), with the log-sum-exp [B, H, T] as sums
    """
    share = torch.sigmoid(sums - sinks.to(sums.dtype)[:, None])
    return (output * share[..., None]).to(output.dtype)


def add_sinks(attend: Attend) -> Attend:
    """Return a kernel that takes sinks, from one that returns the log-sum-exp and no weights."""

    @functools.wraps(attend)
    def attend_with_sinks(*arguments: Any, sinks: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor | None]:
        if sinks is None:
            return attend(*arguments, **options)
        sums: list[Tensor] = []
        output, _ = attend(*arguments, **options, sums=sums)
        return with_sinks(output, *sums, sinks), None

    return attend_with_sinks
