"""NTK-aware scaling: a larger base."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.schedules._schedule import Schedule


@dataclass(frozen=True)
class NTK(Schedule):
    """NTK-aware scaling: a larger base; the fastest pair keeps its frequency, the slowest is divided by the factor.

    base' = base factor^(r/(r-2))

    factor  target length / trained length (unitless, 1 or more); without tuning it has to exceed that ratio.
            Hunyuan's "alpha" (1000 in its models) is this number

    Raises ValueError for a rotary width r of 2, where one pair would have to be both.
    Source: bloc97 2023; stated in Peng et al. 2023, arXiv:2309.00071, definition 1.
    """

    equation = r"\text{base}' = \text{base} \cdot \text{factor}^{r/(r-2)}"
    example = "ntk(factor=4)"

    factor: float

    def __call__(self, frequencies, *, base, width, horizon=None):
        return with_larger_base(self, frequencies, width, self.factor), 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        return published_with_larger_base(base, width, self.factor), 1.0


def with_larger_base(schedule: Schedule, frequencies: Tensor, width: int, growth: float | Tensor) -> Tensor:
    """Return the frequencies, with the fastest unchanged and the slowest divided by the growth."""
    if width < 4:
        raise ValueError(
            f"{schedule.spec_name} keeps the fastest pair and stretches the slowest, which takes two pairs; "
            f"got a rotary width of {width}"
        )
    k = torch.arange(width // 2, dtype=frequencies.dtype, device=frequencies.device)
    return frequencies * growth ** (-2 * k / (width - 2))


def published_with_larger_base(base: float, width: int, growth: float) -> list[float]:
    """Return the same in scalars, as published."""
    larger = base * growth ** (width / (width - 2))
    return [larger ** (-2 * k / width) for k in range(width // 2)]
