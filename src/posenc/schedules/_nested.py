"""The base of schedules that change the frequencies of another schedule."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from posenc.schedules._schedule import Schedule


class NestedSchedule(Schedule):
    """Base of schedules with an option `inner`: the schedule to apply first, or None for plain frequencies."""

    @property
    def inner(self) -> Schedule | None:
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "by_horizon", self.inner is not None and self.inner.by_horizon)

    def inner_frequencies(
        self, frequencies: Tensor, base: float, width: int, horizon: Tensor | None
    ) -> tuple[Tensor, float | Tensor]:
        """Return frequencies and temperature of the inner schedule; without one, the frequencies unchanged."""
        if self.inner is None:
            return frequencies, 1.0
        return self.inner(frequencies, base=base, width=width, horizon=horizon)

    def inner_formula(
        self, frequencies: Sequence[float], base: float, width: int, horizon: float | None
    ) -> tuple[list[float], float]:
        """Return the same in scalars, as published."""
        if self.inner is None:
            return list(frequencies), 1.0
        return self.inner.formula(frequencies, base=base, width=width, horizon=horizon)

    @property
    def scale_factor(self) -> float:
        return 1.0 if self.inner is None else self.inner.scale_factor

    @property
    def short_horizon(self) -> int:
        return self.known_length if self.inner is None else self.inner.short_horizon

    def with_trained_length(self, trained_length: int) -> Schedule:
        outer = super().with_trained_length(trained_length)
        return outer if self.inner is None else replace(outer, inner=self.inner.with_trained_length(trained_length))
