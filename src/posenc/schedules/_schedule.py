"""What a schedule is: what each one gives, and what they all know of trained lengths and horizons."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import ClassVar, TypeVar, get_args

from torch import Tensor

from posenc import checks
from posenc.specs.registry import Named

Horizon = TypeVar("Horizon", Tensor, float)


@dataclass(frozen=True)
class Schedule(Named):
    """Base of the schedules: functions from plain frequencies to (frequencies, temperature).

    The temperature multiplies cosines and sines, and so logits by its square. Some depend on the declared horizon of
    each sequence, and never on the batch that it stands in. Each one also states its published scalar formula, which
    the contract holds it to.

    Two options mean the same in all: `factor` is target length / trained length (unitless, 1 or more), and
    `trained_length` (tokens) is filled in by a model where it is None.
    """

    example: ClassVar[str] = ""
    """A spec of it with all that it needs, for three channel pairs."""

    by_horizon: ClassVar[bool] = False
    """Whether it depends on the declared horizon of a sequence, so that keys have to be cached unturned."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_kind(self, field.name, field.type)
        for name, unit in (("factor", " (target length / trained length)"), ("trained_length", " tokens")):
            checks.at_least(f"{self.spec_name}: {name}", getattr(self, name, None), 1, unit)

    def __call__(
        self, frequencies: Tensor, *, base: float, width: int, horizon: Tensor | None = None
    ) -> tuple[Tensor, float | Tensor]:
        """The new frequencies and the temperature, from plain frequencies base^(-2k/width).

        frequencies  [width/2], radians per position, float64, fastest first
        horizon      [B] on the same device, of each sequence (positions), for schedules that are `by_horizon`:
                     they give frequencies [B, width/2] and a temperature [B] or for all
        """
        raise NotImplementedError

    def formula(
        self, frequencies: Sequence[float], *, base: float, width: int, horizon: float | None = None
    ) -> tuple[list[float], float]:
        """The same, pair by pair in scalars, as published."""
        raise NotImplementedError

    @property
    def scale_factor(self) -> float:
        """By what the `scale` of Attention has to be multiplied besides, which no rotation can do."""
        return 1.0

    def with_trained_length(self, trained_length: int) -> "Schedule":
        """The same schedule with the trained length filled in, where it needs one and none was given."""
        return replace(self, trained_length=trained_length) if getattr(self, "trained_length", 0) is None else self

    @property
    def known_length(self) -> int:
        """The trained length (tokens); raises ValueError when it is unknown."""
        length = getattr(self, "trained_length", None)
        if length is None:
            raise ValueError(
                f"{self.spec_name} compares wavelengths with the trained length; "
                f"give {self.spec_name}(..., trained_length=4096)"
            )
        return length

    @property
    def short_horizon(self) -> int:
        """Up to which horizon (positions) a schedule that is `by_horizon` gives the same as at the trained length."""
        return self.known_length

    def stretch(self, horizon: Tensor | None) -> Tensor:
        """Horizon / trained length [B], 1 or more."""
        return (self.known_horizon(horizon).double() / self.known_length).clamp(min=1)

    def known_horizon(self, horizon: Horizon | None) -> Horizon:
        """The horizon; raises ValueError when there is none."""
        if horizon is None:
            raise ValueError(
                f"{self.spec_name} depends on the horizon of a sequence, and none was given; of the encodings, "
                f"rotary does"
            )
        return horizon


def check_kind(schedule: Schedule, option: str, kind: object) -> None:
    """Raises ValueError unless an option has a value of its kind: in a spec, a bare word is a string."""
    value, told = getattr(schedule, option), f"{schedule.spec_name}: {option}"
    kinds = set(get_args(kind) if isinstance(kind, UnionType) else (kind,))
    if value is None and type(None) in kinds:
        return
    if Schedule in kinds and not isinstance(value, Schedule):
        raise ValueError(f"{told} must be a schedule, such as yarn(factor=4), got {checks.shown(value)}")
    if float in kinds:
        checks.number(told, value)
    if kinds & {bool, float, int, str}:
        checks.kind(told, value, kind)
