"""Position interpolation by the declared horizon of each sequence."""

from dataclasses import dataclass

from posenc.schedules._schedule import Schedule


@dataclass(frozen=True)
class DynamicLinear(Schedule):
    """Position interpolation by just as much as each sequence needs.

    frequency' = frequency / max(1, horizon / trained_length)

    trained_length  tokens; a model built from a spec fills in its own

    Limits: those of linear; and a model tuned for one factor runs with others.
    Source: the dynamic scaling of jquesnelle/yarn 2023 (`ntk=False`); emozilla 2023.
    """

    equation = r"\text{frequency}' = \frac{\text{frequency}}{\max(1, \text{horizon} / \text{trained length})}"
    example = "dynamic_linear()"
    by_horizon = True

    trained_length: int | None = None

    def __call__(self, frequencies, *, base, width, horizon=None):
        return frequencies / self.stretch(horizon)[:, None], 1.0

    def formula(self, frequencies, *, base, width, horizon=None):
        # Positions are squeezed by trained length / horizon.
        squeeze = min(1.0, self.known_length / self.known_horizon(horizon))
        return [f * squeeze for f in frequencies], 1.0
