"""YaRN by the declared horizon of each sequence."""

from dataclasses import dataclass

from posenc.schedules._ramps import check_turns, kept_by_pair, pair_ramp
from posenc.schedules._schedule import Schedule
from posenc.schedules.yarn import YaRN


@dataclass(frozen=True)
class DynamicYaRN(Schedule):
    """YaRN by just as much as each sequence needs; up to the trained length nothing changes.

    factor' = max(factor, horizon / trained_length),   and as yarn with its ramp over pairs:
    frequency' = keep frequency + (1 - keep) frequency / factor',   temperature = 0.1 ln(factor') + 1

    factor          the least factor (unitless): 1 for a model that was never stretched, else what it was tuned with
    trained_length  tokens, before any stretching; a model built from a spec fills in its own
    beta_fast       turns from which a pair is kept
    beta_slow       turns up to which a pair is divided
    truncate        whether the ramp's ends are rounded outwards to whole pairs

    Where it goes wrong: keys turned for one horizon are wrong at another, so they are cached unturned here.
    Source: Peng et al. 2023, arXiv:2309.00071, appendix B.2; `LlamaDynamicYaRNScaledRotaryEmbedding` of
    jquesnelle/yarn.
    """

    equation = r"""
    \text{factor}' = \max\left( \text{factor}, \frac{\text{horizon}}{\text{trained length}} \right)

    \text{frequency}' = \text{keep} \, \text{frequency} + (1 - \text{keep}) \frac{\text{frequency}}{\text{factor}'}

    \text{temperature} = 0.1 \ln\, \text{factor}' + 1
    """
    example = "dynamic_yarn()"
    by_horizon = True

    factor: float = 1.0
    trained_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_turns(self, "beta_slow", "beta_fast")

    def __call__(self, frequencies, *, base, width, horizon=None):
        betas = {"fast": self.beta_fast, "slow": self.beta_slow, "truncate": self.truncate}
        keep = kept_by_pair(pair_ramp(self.known_length, base=base, width=width, **betas), frequencies)
        factor = self.stretch(horizon).clamp(min=self.factor)
        return frequencies * (keep + (1 - keep) / factor[:, None]), 0.1 * factor.log() + 1

    def formula(self, frequencies, *, base, width, horizon=None):
        factor = max(self.factor, self.known_horizon(horizon) / self.known_length)
        yarn = YaRN(factor, self.known_length, self.beta_fast, self.beta_slow, self.truncate)
        return yarn.formula(frequencies, base=base, width=width)
