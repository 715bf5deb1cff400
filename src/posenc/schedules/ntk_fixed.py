"""NTK scaling as a number system."""

from dataclasses import dataclass

import torch

from posenc.schedules._schedule import Schedule


@dataclass(frozen=True)
class NTKFixed(Schedule):
    """NTK scaling read as a number system, with an equal step of stretch for each pair.

    base' = base factor,   frequency'_k = base'^(-2k/r) / factor^(2/r)

    factor  target length / trained length (unitless, 1 or more)

    The slowest pair is divided by exactly the factor, the fastest by factor^(2/r), where ntk keeps it.
    Source: Su 2023, kexue.fm/archives/9706 ("NTK-RoPE-fixed").
    """

    equation = r"""
    \text{base}' = \text{base} \cdot \text{factor}, \quad \text{frequency}'_k =
    \frac{\text{base}'^{-2k/r}}{\text{factor}^{2/r}}
    """
    example = "ntk_fixed(factor=4)"

    factor: float

    def __call__(self, frequencies, *, base, width, horizon=None):
        k = torch.arange(width // 2, dtype=frequencies.dtype, device=frequencies.device)
        return frequencies * self.factor ** (-2 * (k + 1) / width), 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        first = self.factor ** (2 / width)
        return [(base * self.factor) ** (-2 * k / width) / first for k in range(width // 2)], 1.0
