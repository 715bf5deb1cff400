"""Position interpolation as a schedule."""

from dataclasses import dataclass

from posenc.schedules._schedule import Schedule


@dataclass(frozen=True)
class Linear(Schedule):
    """Position interpolation: every frequency divided by the factor, as if positions were squeezed.

    frequency' = frequency / factor

    factor  target length / trained length (unitless, 1 or more)

    Limit: needs fine-tuning (some 1000 steps); without it the short range suffers at once.
    Source: Chen et al. 2023, arXiv:2306.15595, section 2.3.

    >>> import torch
    >>> Linear(factor=2)(torch.tensor([1.0, 0.1]), base=100, width=4)[0]
    tensor([0.5000, 0.0500])
    """

    equation = r"\text{frequency}' = \frac{\text{frequency}}{\text{factor}}"
    example = "linear(factor=4)"

    factor: float

    def __call__(self, frequencies, *, base, width, horizon=None):
        return frequencies / self.factor, 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        return [f / self.factor for f in frequencies], 1.0
