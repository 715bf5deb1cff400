"""LongRoPE: each pair has its own searched divisor, one for texts up to the trained length and one for longer ones.

Source: Ding et al. 2024, arXiv:2402.13753, section 3; the temperature is that of Phi-3's code.
Where it goes wrong: keys rotated for short texts are wrong once the horizon exceeds the trained length. Released
models scale the first tokens too, which the paper leaves as they are.
"""

import math

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length
TRAINED_LENGTH = 4096  # tokens, before any stretching
SHORT_FACTOR = (1.0, 1.0, 1.0, 1.0)  # a divisor for each pair, in texts up to the trained length
LONG_FACTOR = (1.0, 1.5, 2.5, 4.0)  # a divisor for each pair, in longer texts
ATTENTION_FACTOR = 0.0
SHORT_MSCALE = 0.0  # temperature of texts up to the trained length
LONG_MSCALE = 0.0  # temperature of longer texts
TEMPERATURE = ATTENTION_FACTOR if ATTENTION_FACTOR else math.sqrt(1 + math.log(FACTOR) / math.log(TRAINED_LENGTH))


def frequencies(dim: int, base: float, horizon: int) -> tuple[Tensor, float]:
    """Return the frequencies (radians per position, fastest first) and the factor of cosines and sines."""
    plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    divisors = torch.tensor(LONG_FACTOR if horizon > TRAINED_LENGTH else SHORT_FACTOR, dtype=torch.float64)
    if SHORT_MSCALE or LONG_MSCALE:
        short, long = SHORT_MSCALE if SHORT_MSCALE else TEMPERATURE, LONG_MSCALE if LONG_MSCALE else TEMPERATURE
        return plain / divisors, long if horizon > TRAINED_LENGTH else short
    else:
        return plain / divisors, TEMPERATURE
