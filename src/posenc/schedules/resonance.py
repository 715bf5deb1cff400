"""Resonance: wavelengths that are whole numbers of positions."""

import math
from dataclasses import dataclass

from posenc.schedules._nested import NestedSchedule
from posenc.schedules._schedule import Schedule


@dataclass(frozen=True)
class Resonance(NestedSchedule):
    """Resonance: every wavelength rounded to a whole number of positions, so that the angles of training come back.

    wavelength' = round(2 pi / frequency),   frequency' = 2 pi / wavelength'

    inner  the schedule to round, as in the authors' Resonance NTK and Resonance YaRN; None for plain frequencies

    Source: Wang et al. 2024, arXiv:2403.00071, section 4; sheryc/resonance_rope.

    >>> import torch
    >>> Resonance()(torch.tensor([1.0, 0.1]), base=100, width=4)[0] / (2 * torch.pi / torch.tensor([6.0, 63.0]))
    tensor([1., 1.])
    """

    equation = r"""
    \text{wavelength}' = \operatorname{round}\left( \frac{2 \pi}{\text{frequency}} \right), \quad \text{frequency}' =
    \frac{2 \pi}{\text{wavelength}'}
    """
    example = "resonance()"

    inner: Schedule | None = None

    def __call__(self, frequencies, *, base, width, horizon=None):
        frequencies, temperature = self.inner_frequencies(frequencies, base, width, horizon)
        return 2 * math.pi / (2 * math.pi / frequencies).round(), temperature

    def formula(self, frequencies, *, base, width, horizon=None):
        frequencies, temperature = self.inner_formula(frequencies, base, width, horizon)
        return [2 * math.pi / round(2 * math.pi / f) if f else 0.0 for f in frequencies], temperature
