"""Clipped RoPE ("CoPE" of 2026): the slowest pairs, which complete no turn in training, fade out.

Source: Li, Ren, Yuille, Wang 2026, arXiv:2602.05258, and their code, hrlics/CoPE.
Where it goes wrong: it needs continued training, after a change of base. A sharp edge (HardClip) rings in the logits.
The contextual encoding CoPE of 2024 is another thing.
"""

import math

import torch
from torch import Tensor

from posenc.standalone.forms.schedules.linear import frequencies as inner_frequencies

PAIRS = 20  # how many of the slowest pairs fade: 20 of 64 in the paper's Llama 3
TRAINED_LENGTH = 4096  # tokens: pairs of longer wavelengths fade
SOFT = True
INNER = False
HAS_TEMPERATURE = False
BY_HORIZON = False


def frequencies(dim: int, base: float, horizon: int = 0) -> Tensor | tuple[Tensor, float | Tensor]:
    """Return the frequencies (radians per position, fastest first)."""
    if PAIRS is None:
        count = sum(2 * math.pi * base ** (2 * k / dim) > TRAINED_LENGTH for k in range(dim // 2))
    else:
        count = min(PAIRS, dim // 2)
    j = torch.arange(dim // 2, dtype=torch.float64) - (dim // 2 - count)  # 0 for the first pair that fades
    if SOFT:
        keep = (1 + (math.pi * j.clamp(min=0) / max(count - 1, 1)).cos()) / 2
    else:
        keep = (j < 0).double()
    if HAS_TEMPERATURE and BY_HORIZON:
        freqs, temperature = inner_frequencies(dim, base, horizon)
        return keep * freqs, temperature  # which multiplies cosines and sines
    elif HAS_TEMPERATURE:
        freqs, temperature = inner_frequencies(dim, base)
        return keep * freqs, temperature  # which multiplies cosines and sines
    elif BY_HORIZON:
        return keep * inner_frequencies(dim, base, horizon)
    elif INNER:
        return keep * inner_frequencies(dim, base)
    else:
        return keep * base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
