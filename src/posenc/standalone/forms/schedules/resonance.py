"""Resonance: each wavelength is rounded to a whole number of positions, so that the angles of training come back.

Source: Wang et al. 2024, arXiv:2403.00071, section 4; sheryc/resonance_rope.
Where it goes wrong: it does not stretch a context by itself; it is made to follow NTK or YaRN. Angles return exactly
at whole positions only.
"""

import math

import torch
from torch import Tensor

from posenc.standalone.forms.schedules.linear import frequencies as inner_frequencies

INNER = False
HAS_TEMPERATURE = False
BY_HORIZON = False


def frequencies(dim: int, base: float, horizon: int = 0) -> Tensor | tuple[Tensor, float | Tensor]:
    """Return the frequencies (radians per position, fastest first)."""
    if HAS_TEMPERATURE and BY_HORIZON:
        freqs, temperature = inner_frequencies(dim, base, horizon)
        return 2 * math.pi / (2 * math.pi / freqs).round(), temperature  # which multiplies cosines and sines
    elif HAS_TEMPERATURE:
        freqs, temperature = inner_frequencies(dim, base)
        return 2 * math.pi / (2 * math.pi / freqs).round(), temperature  # which multiplies cosines and sines
    elif BY_HORIZON:
        return 2 * math.pi / (2 * math.pi / inner_frequencies(dim, base, horizon)).round()
    elif INNER:
        return 2 * math.pi / (2 * math.pi / inner_frequencies(dim, base)).round()
    else:
        wavelengths = 2 * math.pi * base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        return 2 * math.pi / wavelengths.round()
