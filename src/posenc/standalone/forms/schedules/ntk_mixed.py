"""NTK scaling whose steps of stretch shrink towards the slow pairs; the slowest is divided by exactly the factor.

Source: Su 2023, kexue.fm/archives/9706 ("NTK-RoPE-mixed").
Where it goes wrong: the fastest pair is stretched too, unlike in NTK-aware scaling, so near tokens look nearer.
"""

import math

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length
POWER = 0.625  # 0: all pairs are divided by the factor (linear); 1: equal steps (NTK-RoPE-fixed)


def frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    a = math.log(FACTOR) / (dim / 2) ** POWER
    return plain / (a * torch.arange(1, dim // 2 + 1, dtype=torch.float64) ** POWER).exp()
