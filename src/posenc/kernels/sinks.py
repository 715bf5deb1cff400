"""Sinks: a logit of each head that takes part in the softmax and has no value, so that keys share less than all.

Which keys there are is as before: a sink stands at no position, is hidden by no mask, and lies in no cache.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Attend: TypeAlias = Callable[..., tuple[Tensor, Tensor | None]]


def beside_sinks(out: Tensor, sums: Tensor, sinks: Tensor) -> Tensor:
    """What attention gives beside sinks [H], from what it gives without, [B, H, T, E].

    out * exp(sums) / (exp(sink) + exp(sums)), with the logarithm of each query's sum of exponentials, [B, H, T]
    """
    share = torch.sigmoid(sums - sinks.to(sums.dtype)[:, None])
    return (out * share[..., None]).to(out.dtype)


def from_sums(attend: Attend) -> Attend:
    """A kernel that takes sinks, from one that gives the sums of its exponentials and no weights."""

    @functools.wraps(attend)
    def attend_beside(*given: Any, sinks: Tensor | None = None, **asked: Any) -> tuple[Tensor, Tensor | None]:
        if sinks is None:
            return attend(*given, **asked)
        sums: list[Tensor] = []
        out, _ = attend(*given, **asked, sums=sums)
        return beside_sinks(out, *sums, sinks), None

    return attend_beside
