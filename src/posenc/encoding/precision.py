"""Precision: float64 on devices that have it, and no rounding by autocast."""

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64."""
    return device.type != "mps"


def exact(x: Tensor) -> Tensor:
    """Return x in float64, on the CPU if its device has no float64; angles are computed from it."""
    return x.to(x.device if has_float64(x.device) else "cpu").double()


def most_exact(x: Tensor) -> Tensor:
    """Return x on its own device, in float64 if the device has it."""
    return x.double() if has_float64(x.device) else x


AUTOCASTS = tuple(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "maia", "xla")))
"""The devices of autocast, read once at import: compilers before torch 2.13 cannot read them in a graph."""


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context in which operations on x keep their dtype instead of autocast's half precision."""
    device = x.device.type
    if device in AUTOCASTS and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


@contextmanager
def without_tiny_numbers() -> Generator[None]:
    """Flush subnormal numbers (below 2^-126 in float32) to 0, in this thread alone.

    A softmax leaves many of them under steep biases, and products with them are many times slower.

    >>> with without_tiny_numbers():
    ...     sys.float_info.min / 2
    0.0
    """
    # PyTorch has no getter for the setting, so a division shows it.
    was_set = sys.float_info.min / 2 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_set)
