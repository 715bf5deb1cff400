"""Linear position interpolation by the length of each text: divide all frequencies by horizon / trained length.

Source: the dynamic scaling of jquesnelle/yarn 2023 (`ntk=False`); emozilla 2023.
Where it goes wrong: keys rotated for one horizon are wrong at another. A model tuned for one factor runs with others.
"""

import torch
from torch import Tensor

TRAINED_LENGTH = 4096  # tokens, before any stretching


def frequencies(dim: int, base: float, horizon: int) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return plain / max(horizon / TRAINED_LENGTH, 1.0)
