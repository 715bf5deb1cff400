"""The base class of schedules: their interface, and the checks of trained lengths and horizons that they share."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import ClassVar, TypeVar, get_args

from torch import Tensor

from posenc import checks
from posenc.specs.registry import SpecObject

Horizon = TypeVar("Horizon", Tensor, float)


@dataclass(frozen=True)
class Schedule(SpecObject):
    """Base of the schedules: functions from plain frequencies to (frequencies, temperature).

    A subclass is a frozen dataclass whose fields are its options in a spec, and defines `__call__` and `formula`. The
    temperature multiplies cosines and sines, and so logits by its square. A schedule may depend on the declared horizon
    of a sequence, never on the other sequences of the batch. The tests compare `__call__` with `formula`.

    Two options have one meaning in all schedules: `factor` is target length / trained length (unitless, 1 or more), and
    `trained_length` (tokens) is set by the model where it is None.
    """

    example: ClassVar[str] = ""
    """A spec of it with all required options, for three channel pairs."""

    by_horizon: ClassVar[bool] = False
    """Whether it depends on the declared horizon of a sequence: keys are then cached unrotated."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_option(self, field.name, field.type)
        for name, unit in (("factor", " (target length / trained length)"), ("trained_length", " tokens")):
            checks.at_least(f"{self.spec_name}: {name}", getattr(self, name, None), 1, unit)

    def __call__(
        self, frequencies: Tensor, *, base: float, width: int, horizon: Tensor | None = None
    ) -> tuple[Tensor, float | Tensor]:
        """Return the new frequencies and the temperature, from plain frequencies base^(-2k/width).

        frequencies  [width/2], radians per position, float64, fastest first, for the width channels that rotate
        horizon      [B], the declared horizon of each sequence (positions, on the same device), if `by_horizon`:
                     the result is then frequencies [B, width/2] and a temperature [B] or a number
        """
        raise NotImplementedError

    def formula(
        self, frequencies: Sequence[float], *, base: float, width: int, horizon: float | None = None
    ) -> tuple[list[float], float]:
        """Return the same in scalars, pair by pair, as published."""
        raise NotImplementedError

    @property
    def scale_factor(self) -> float:
        """The factor that Attention's `scale` needs for the schedule, since no rotation can apply it."""
        return 1.0

    def with_trained_length(self, trained_length: int) -> "Schedule":
        """Return the schedule with this trained length, if it needs one and has none."""
        return replace(self, trained_length=trained_length) if getattr(self, "trained_length", 0) is None else self

    @property
    def known_length(self) -> int:
        """The trained length (tokens). Raises ValueError if it is unknown."""
        length = getattr(self, "trained_length", None)
        if length is None:
            raise ValueError(
                f"{self.spec_name} compares wavelengths with the trained length; "
                f"give {self.spec_name}(..., trained_length=4096)"
            )
        return length

    @property
    def short_horizon(self) -> int:
        """The horizon (positions) up to which the result is that of the trained length, if `by_horizon`."""
        return self.known_length

    def stretch(self, horizon: Tensor | None) -> Tensor:
        """Return horizon / trained length [B], 1 or more."""
        return (self.known_horizon(horizon).double() / self.known_length).clamp(min=1)

    def known_horizon(self, horizon: Horizon | None) -> Horizon:
        """Return the horizon. Raises ValueError if there is none."""
        if horizon is None:
            raise ValueError(
                f"{self.spec_name} depends on the horizon of a sequence, and none was given; of the encodings, "
                f"rotary does"
            )
        return horizon


def check_option(schedule: Schedule, option: str, kind: object) -> None:
    """Raise ValueError unless an option has a value of its type. In a spec, a bare word is a string."""
    value, label = getattr(schedule, option), f"{schedule.spec_name}: {option}"
    kinds = set(get_args(kind) if isinstance(kind, UnionType) else (kind,))
    if value is None and type(None) in kinds:
        return
    if Schedule in kinds and not isinstance(value, Schedule):
        raise ValueError(f"{label} must be a schedule, such as yarn(factor=4), got {checks.display(value)}")
    if float in kinds:
        checks.number(label, value)
    if kinds & {bool, float, int, str}:
        checks.kind(label, value, kind)
