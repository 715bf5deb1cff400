"""NTK-aware scaling by the declared horizon of each sequence."""

from dataclasses import dataclass

from posenc.schedules._schedule import Schedule
from posenc.schedules.ntk import published_with_larger_base, with_larger_base


@dataclass(frozen=True)
class DynamicNTK(Schedule):
    """NTK-aware scaling by just as much as each sequence needs; up to the trained length nothing changes.

    base' = base (factor L/trained_length - (factor - 1))^(r/(r-2)),   L = max(horizon, trained_length)

    factor          how fast the base grows with the horizon (unitless, 1 or more)
    trained_length  tokens; a model built from a spec fills in its own

    Qwen-1 is factor=2 with the horizon rounded up to the trained length times a power of two.
    Where it goes wrong: keys turned for one horizon are wrong at another, so they are cached unturned here.
    Raises ValueError for a rotary width r of 2.
    Source: emozilla 2023; `_compute_dynamic_ntk_parameters` of transformers; Peng et al. 2023, arXiv:2309.00071,
    appendix B.2.
    """

    equation = r"""
    \text{base}' = \text{base} \left( \frac{\text{factor} \cdot L}{\text{trained length}} - (\text{factor} - 1)
    \right)^{r/(r-2)}, \quad L = \max(\text{horizon}, \text{trained length})
    """
    example = "dynamic_ntk(factor=2)"
    by_horizon = True

    factor: float = 1.0
    trained_length: int | None = None

    def __call__(self, frequencies, *, base, width, horizon=None):
        growth = self.factor * self.stretch(horizon) - (self.factor - 1)
        return with_larger_base(self, frequencies, width, growth[:, None]), 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        length = self.known_length
        current = max(self.known_horizon(horizon), length)
        return published_with_larger_base(base, width, self.factor * current / length - (self.factor - 1)), 1.0
