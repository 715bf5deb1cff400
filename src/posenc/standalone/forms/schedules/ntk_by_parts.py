"""NTK by parts: fast pairs keep their frequency, slow ones are divided by the factor, linear in turns between.

Source: Peng et al. 2023, arXiv:2309.00071, section 3.2, definition 2.
Where it goes wrong: below a trained length of 201 tokens no pair turns 32 times, so that all are stretched.
"""

import math

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length
TRAINED_LENGTH = 4096  # tokens, before any stretching
ALPHA = 1.0  # pairs that turn less often in the trained length are divided by the factor
BETA = 32.0  # pairs that turn more often keep their frequency


def frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    turns = TRAINED_LENGTH * plain / (2 * math.pi)
    if ALPHA == BETA:
        keep = (turns >= BETA).double()
    else:
        keep = ((turns - ALPHA) / (BETA - ALPHA)).clamp(0, 1)
    return keep * plain + (1 - keep) * plain / FACTOR
