"""In which precision is computed: float64 where a device has it, and never what autocast would round to."""

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64."""
    return device.type != "mps"


def exact(x: Tensor) -> Tensor:
    """x in float64, on the CPU where its own device has no float64: angles are taken so."""
    return x.to(x.device if has_float64(x.device) else "cpu").double()


def most_exact(x: Tensor) -> Tensor:
    """x on its own device, in float64 where the device has it."""
    return x.double() if has_float64(x.device) else x


AUTOCASTS = tuple(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "maia", "xla")))
"""The devices that autocast knows, asked for once: the compilers before torch 2.13 cannot ask."""


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Where what is computed with x keeps its dtype: autocast would round it to half precision."""
    device = x.device.type
    if device in AUTOCASTS and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


@contextmanager
def without_tiny_numbers() -> Generator[None]:
    """Where numbers below the normal ones (2^-126 in float32) are 0, in this thread alone.

    A softmax leaves many of them under steep biases, and a product with them takes many times as long.

    >>> with without_tiny_numbers():
    ...     sys.float_info.min / 2
    0.0
    """
    # PyTorch does not tell how the thread is set; its divisions do.
    before = sys.float_info.min / 2 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
