"""LongRoPE: searched divisors, for short and for long texts."""

import math
from dataclasses import dataclass

import torch

from posenc import checks
from posenc.foreign import quote
from posenc.schedules._schedule import Schedule
from posenc.tokens.shared_tables import number_tensor


@dataclass(frozen=True)
class LongRoPE(Schedule):
    """LongRoPE: each pair has its own searched divisors, one for short and one for long texts.

    frequency'_k = frequency_k / short_factor_k   up to the trained length,   frequency_k / long_factor_k   beyond
    temperature = sqrt(1 + ln(factor) / ln(trained_length))

    factor            target length / trained length (unitless, 1 or more)
    short_factor      one divisor for each pair, for horizons up to the trained length (unitless, above 0)
    long_factor       one divisor for each pair, for longer horizons
    trained_length    tokens, 2 or more; 4096 in Phi-3; a model built from a spec fills in its own
    attention_factor  the temperature of both lists, instead of the formula
    short_mscale      the temperature of short sequences alone, instead of the formula
    long_mscale       the temperature of long sequences alone, instead of the formula

    How we differ from the paper: it also leaves the first tokens of a sequence unscaled, which no released model does.
    Where it goes wrong: a text that grows past the trained length changes lists, so keys are cached unturned here.
    Raises ValueError for lists that do not hold one number for each pair.
    Source: Ding et al. 2024, arXiv:2402.13753, section 3; Phi-3's modelling code for the temperature.
    """

    equation = r"""
    \text{frequency}'_k = \begin{cases} \text{frequency}_k / \text{short factor}_k & \text{up to the trained length}
    \\ \text{frequency}_k / \text{long factor}_k & \text{beyond} \end{cases}

    \text{temperature} = \sqrt{1 + \frac{\ln\, \text{factor}}{\ln\, \text{trained length}}}
    """
    example = "longrope(factor=4, short_factor=(1.0, 1.1, 1.3), long_factor=(1.0, 2.0, 4.0))"
    by_horizon = True

    factor: float
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    trained_length: int | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("longrope: trained_length", self.trained_length, 2, " tokens")
        for option in ("short_factor", "long_factor"):
            value = getattr(self, option)
            divisors = value if isinstance(value, (list, tuple)) else ()
            if not divisors or not all(checks.is_number(x) and x > 0 for x in divisors):
                raise ValueError(
                    f"longrope: {option} must be a list of numbers above 0, one for each pair, got {quote(value)}"
                )
            # A list is not hashable, and schedules are keys of cached tables.
            object.__setattr__(self, option, tuple(divisors))
        self.hold(checks.above, attention_factor=0, short_mscale=0, long_mscale=0)
        if self.attention_factor is not None and (self.short_mscale or self.long_mscale):
            raise ValueError(
                "longrope: attention_factor is the temperature of both lists, short_mscale and long_mscale are those "
                "of one; give the first or the others"
            )

    def temperatures(self) -> tuple[float, float]:
        """Return the temperatures of short and of long sequences."""
        usual = self.attention_factor or math.sqrt(1 + math.log(self.factor) / math.log(self.known_length))
        return self.short_mscale or usual, self.long_mscale or usual

    def __call__(self, frequencies, *, base, width, horizon=None):
        for option in ("short_factor", "long_factor"):
            if len(getattr(self, option)) != width // 2:
                raise ValueError(
                    f"longrope: {option} must hold one number for each of the {width // 2} pairs of a rotary width "
                    f"of {width}, got {len(getattr(self, option))}"
                )
        long = self.stretch(horizon) > 1
        dtype, device = frequencies.dtype, frequencies.device
        short_factor, long_factor = (number_tensor(f, dtype, device) for f in (self.short_factor, self.long_factor))
        short_warmth, long_warmth = (frequencies.new_full((), t) for t in self.temperatures())
        divisors = torch.where(long[:, None], long_factor, short_factor)
        return frequencies / divisors, torch.where(long, long_warmth, short_warmth)

    def formula(self, frequencies, *, base, width, horizon=None):
        long = self.known_horizon(horizon) > self.known_length
        divisors = self.long_factor if long else self.short_factor
        mscale = self.long_mscale if long else self.short_mscale
        usual = self.attention_factor or (1 + math.log(self.factor, self.known_length)) ** 0.5
        return [1 / (c * base ** (2 * k / width)) for k, c in enumerate(divisors)], mscale or usual
