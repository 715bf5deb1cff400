"""What the maps share that read numbers."""

import torch
from torch import Tensor


def in_runs(ids: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Which of the tokens [n] are digits, and how many digits stand before each one in its number."""
    digit = (ids >= first) & (ids < first + count)
    token = torch.arange(len(ids), device="cpu")
    # The last token that was no digit is where a number's count begins.
    last = torch.where(digit, -1, token).cummax(0).values
    return digit, token - last - 1
