"""Llama 3's scaling: fast pairs stay, slow pairs are divided by the factor, linear in turns between.

Source: Meta's Llama 3.1 reference code, `apply_scaling`; Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.2.
Where it goes wrong: for Llama 3 set BASE = 500_000 below, in place of rotary's 10,000. The trained length is that
before stretching (8192), not the context of the released model.
"""

import math

import torch
from torch import Tensor

FACTOR = 8.0  # 8 in Llama 3.1, 32 in 3.2
TRAINED_LENGTH = 8192  # tokens, before any stretching
LOW = 1.0  # pairs that turn less often in the trained length are divided by the factor
HIGH = 4.0  # pairs that turn more often keep their frequency


def frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    turns = TRAINED_LENGTH * plain / (2 * math.pi)
    if LOW == HIGH:
        keep = (turns >= HIGH).double()
    else:
        keep = ((turns - LOW) / (HIGH - LOW)).clamp(0, 1)
    return keep * plain + (1 - keep) * plain / FACTOR
