"""Linear position interpolation: divide all frequencies by the factor, as if positions were squeezed.

Source: Chen et al. 2023, arXiv:2306.15595, section 2.3; kaiokendev 2023.
Where it goes wrong: without fine-tuning of some 1000 steps the model gets worse at once, in short texts too.
"""

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length


def frequencies(dim: int, base: float, horizon: int = 0) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim) / FACTOR
