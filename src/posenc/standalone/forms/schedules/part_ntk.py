"""The first NTK by parts, before the paper: slow pairs interpolated, middle ones NTK-aware, fast ones unchanged.

Source: `LlamaPartNTKScaledRotaryEmbedding` of jquesnelle/yarn 2023; its constants were "found experimentally".
Where it goes wrong: the definition in the paper of YaRN has the same name and other frequencies (arXiv:2309.00071).
"""

import math

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length
TRAINED_LENGTH = 4096  # tokens, before any stretching


def frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    plain = base**-exponents
    ntk = (base * FACTOR ** (dim / (dim - 2))) ** -exponents  # dim >= 4
    mixed = torch.lerp(plain / FACTOR, ntk, ramp(dim, base, 1.25, 0.75))
    return torch.lerp(mixed, plain, ramp(dim, base, 16.0, 2.0))


def ramp(dim: int, base: float, fast: float, slow: float) -> Tensor:
    """Return a weight for each pair: 1 from `fast` turns in the trained length, 0 up to `slow`, and a ramp between."""
    turns = TRAINED_LENGTH / (2 * math.pi)  # of the fastest pair; pair k turns base^(2k/dim) times less
    low, high = (dim / 2 * math.log(turns / n, base) for n in (fast, slow))
    low, high = (min(max(end, 0), dim - 1) for end in (math.floor(low), math.ceil(high)))
    return 1 - ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low or 0.001)).clamp(0, 1)
