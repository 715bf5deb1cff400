"""NTK-aware scaling by the length of each text: the base grows with the horizon past the trained length.

Source: emozilla 2023; Peng et al. 2023, arXiv:2309.00071, appendix B.2; `_compute_dynamic_ntk_parameters` of
transformers.
Where it goes wrong: keys rotated for one horizon are wrong at another. Qwen 1 is FACTOR = 2 with the horizon rounded
up to the trained length times a power of two.
"""

import torch
from torch import Tensor

FACTOR = 1.0  # how fast the base grows with the horizon
TRAINED_LENGTH = 4096  # tokens, before any stretching


def frequencies(dim: int, base: float, horizon: int) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    stretch = FACTOR * max(horizon / TRAINED_LENGTH, 1.0) - (FACTOR - 1)
    base = base * stretch ** (dim / (dim - 2))  # dim >= 4
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
