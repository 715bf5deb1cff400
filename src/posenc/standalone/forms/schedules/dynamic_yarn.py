"""YaRN by the length of each text: its factor is horizon / trained length, and changes nothing up to that length.

Source: Peng et al. 2023, arXiv:2309.00071, appendix B.2; `LlamaDynamicYaRNScaledRotaryEmbedding` of jquesnelle/yarn.
Where it goes wrong: keys rotated for one horizon are wrong at another. The temperature multiplies cos and sin, so
logits get its square.
"""

import math

import torch
from torch import Tensor

FACTOR = 1.0  # the least factor: 1, or what the model was tuned with
TRAINED_LENGTH = 4096  # tokens, before any stretching
BETA_FAST = 32.0  # pairs that turn more often in the trained length keep their frequency
BETA_SLOW = 1.0  # pairs that turn less often are divided by the factor
TRUNCATE = True


def frequencies(dim: int, base: float, horizon: int) -> tuple[Tensor, Tensor]:
    """Return the frequencies (radians per position, fastest first) and the factor of cosines and sines."""
    plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    factor = torch.full((), max(horizon / TRAINED_LENGTH, FACTOR), dtype=torch.float64)
    turns = TRAINED_LENGTH / (2 * math.pi)  # of the fastest pair; pair k turns base^(2k/dim) times less
    ends = [dim / 2 * math.log(turns / beta, base) for beta in (BETA_FAST, BETA_SLOW)]
    if TRUNCATE:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = (min(max(end, 0), dim - 1) for end in ends)  # pairs between which the ramp lies
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float64) - first) / (last - first or 0.001)).clamp(0, 1)
    return keep * plain + (1 - keep) * plain / factor, 0.1 * factor.log() + 1
