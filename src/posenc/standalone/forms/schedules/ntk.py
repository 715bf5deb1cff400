"""NTK-aware scaling: a larger base, so that the fastest pair stays and the slowest is divided by the factor.

Source: bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1, definition 1.
Where it goes wrong: without fine-tuning, the factor has to exceed target length / trained length.
"""

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length; Hunyuan's "alpha"


def frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    base = base * FACTOR ** (dim / (dim - 2))  # dim >= 4
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
