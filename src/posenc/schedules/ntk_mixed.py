"""NTK scaling between a number system and position interpolation."""

import math
from dataclasses import dataclass

import torch

from posenc import checks
from posenc.schedules._schedule import Schedule


@dataclass(frozen=True)
class NTKMixed(Schedule):
    """NTK scaling whose steps shrink towards the slow pairs, between ntk_fixed and linear.

    frequency'_k = frequency_k / exp(a (k+1)^power),   a = ln(factor) / (r/2)^power

    factor  target length / trained length (unitless, 1 or more)
    power   how the stretch is spread: 1 is ntk_fixed, 0 is linear (unitless, 0 or more)

    The slowest pair is divided by exactly the factor for every power.
    Source: Su 2023, kexue.fm/archives/9706 ("NTK-RoPE-mixed", b = 0.625).
    """

    equation = r"""
    \text{frequency}'_k = \frac{\text{frequency}_k}{\exp(a (k+1)^{\text{power}})}, \quad a = \frac{\ln\,
    \text{factor}}{(r/2)^{\text{power}}}
    """
    example = "ntk_mixed(factor=4)"

    factor: float
    power: float = 0.625

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.at_least, power=0)

    def __call__(self, frequencies, *, base, width, horizon=None):
        k = torch.arange(width // 2, dtype=frequencies.dtype, device=frequencies.device)
        return frequencies * self.factor ** -(((k + 1) / (width // 2)) ** self.power), 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        a = math.log(self.factor) / (width / 2) ** self.power
        return [f / math.exp(a * (k + 1) ** self.power) for k, f in enumerate(frequencies)], 1.0
