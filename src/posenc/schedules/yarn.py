"""YaRN, with the options of every released implementation."""

import math
from dataclasses import dataclass

from posenc import checks
from posenc.schedules._ramps import (
    check_turns,
    kept_by_pair,
    kept_by_turns,
    pair_ramp,
    published_pair_ramp,
    published_turn_ramp,
)
from posenc.schedules._schedule import Schedule

RAMPS = ("pairs", "turns")
MSCALE_RULES = ("together", "apart")


@dataclass(frozen=True)
class YaRN(Schedule):
    """YaRN: fast pairs stay, slow ones are divided, with a ramp between; logits get warmer.

    turns_k = trained_length frequency_k / (2 pi): how often pair k turns in the trained length
    ramp=pairs: pair(n) = r ln(trained_length / (2 pi n)) / (2 ln base): the pair index, not whole, that turns n times
    low = pair(beta_fast), high = pair(beta_slow), kept in [0, r - 1]; truncate: floor of low, ceiling of high
    keep_k = 1 - clamp((k - low)/(high - low), 0, 1)
    ramp=turns: keep_k = clamp((turns_k - beta_slow)/(beta_fast - beta_slow), 0, 1)
    frequency' = keep frequency + (1 - keep) frequency / factor,   temperature = 0.1 ln(factor) + 1

    factor            target length / trained length (unitless, 1 or more)
    trained_length    tokens; a model built from a spec fills in its own
    beta_fast         turns from which a pair is kept
    beta_slow         turns up to which a pair is divided
    truncate          whether the ends of ramp=pairs are rounded outwards to whole pairs (gpt-oss: False)
    ramp              "pairs", linear in the pair index, as in every released implementation; "turns", linear in turns,
                      as in the paper. The frequencies differ by up to 3 times
    attention_factor  the temperature, instead of all rules below (logits are multiplied by its square)
    mscale            DeepSeek's two numbers: with g(m) = 0.1 m ln(factor) + 1 the temperature is g(mscale) /
    mscale_all_dim    g(mscale_all_dim), and models of DeepSeek's kind multiply the scale of attention by
                      g(mscale_all_dim)^2 too: that is `scale_factor`
    mscale_rule       the rule if one of the two is missing or 0. "together": both are ignored, and the temperature
                      is g(1), as in transformers and vLLM's YaRN. "apart": each counts for itself, mscale is 1 and
                      mscale_all_dim 0 when missing, as in DeepSeek's own code, vLLM's class for it and Megatron. With
                      factor=40, mscale=0.707, mscale_all_dim=0 the temperature is 1.368888 or 1.260804

    Attention does not multiply its scale by itself, because not all models with these numbers want it (Ministral 3 does
    not): give it `Attention(..., scale=head_dim**-0.5 * schedule.scale_factor)`.

    Where it goes wrong: with a trained length below 201 every pair turns fewer than 32 times, so all are interpolated.
    Where the whole ramp lies outside the pairs (a trained length below 2 pi, or so long for a small base that the last
    pair turns more than beta_fast times) the released code runs it backwards: it keeps what it should divide, or
    divides what it should keep. Here such a ramp does not turn round, so the frequencies are not those of that code.
    Untuned, it works about as well as cropping the context.
    Source: Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4, and the authors' code; DeepSeek-AI 2024,
    arXiv:2405.04434 and its modelling code, for mscale.

    >>> deepseek = YaRN(40, trained_length=4096, mscale=1.0, mscale_all_dim=1.0)
    >>> deepseek.temperature, round(deepseek.scale_factor, 6)
    (1.0, 1.873854)
    """

    equation = r"""
    \text{keep}_k = 1 - \operatorname{clamp}\left( \frac{k - \text{low}}{\text{high} - \text{low}}, 0, 1 \right)

    \text{low} = \lfloor \operatorname{pair}(\text{beta fast}) \rfloor, \quad \text{high} = \lceil
    \operatorname{pair}(\text{beta slow}) \rceil, \quad \operatorname{pair}(n) = \frac{r \ln(\text{trained length} /
    (2 \pi n))}{2 \ln\, \text{base}}

    \text{frequency}'_k = \text{keep}_k \, \text{frequency}_k + (1 - \text{keep}_k)
    \frac{\text{frequency}_k}{\text{factor}}

    \text{temperature} = 0.1 \ln\, \text{factor} + 1
    """
    example = "yarn(factor=4)"

    factor: float
    trained_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    ramp: str = "pairs"
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    mscale_rule: str = "together"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_turns(self, "beta_slow", "beta_fast")
        self.hold(checks.one_of, ramp=RAMPS, mscale_rule=MSCALE_RULES)
        self.hold(checks.at_least, mscale=0, mscale_all_dim=0)
        self.hold(checks.above, attention_factor=0)

    @property
    def temperature(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale_rule == "together" and not (self.mscale and self.mscale_all_dim):
            return yarn_temperature(self.factor)
        mscale = 1.0 if self.mscale is None else self.mscale
        return yarn_temperature(self.factor, mscale) / yarn_temperature(self.factor, self.mscale_all_dim or 0.0)

    @property
    def scale_factor(self) -> float:
        return yarn_temperature(self.factor, self.mscale_all_dim or 0.0) ** 2

    def ends(self, base: float, width: int) -> tuple[float, float]:
        """Return the pair indices between which the ramp lies, for ramp=pairs."""
        betas = {"fast": self.beta_fast, "slow": self.beta_slow, "truncate": self.truncate}
        return pair_ramp(self.known_length, base=base, width=width, **betas)

    def __call__(self, frequencies, *, base, width, horizon=None):
        if self.ramp == "turns":
            keep = kept_by_turns(frequencies, self.known_length, self.beta_slow, self.beta_fast)
        else:
            keep = kept_by_pair(self.ends(base, width), frequencies)
        return frequencies * (keep + (1 - keep) / self.factor), self.temperature

    def formula(self, frequencies, *, base, width, horizon=None):
        length, slow, fast = self.known_length, self.beta_slow, self.beta_fast
        if self.ramp == "turns":
            keep = [published_turn_ramp(f, length, slow, fast) for f in frequencies]
        else:
            ramp = {"base": base, "width": width, "fast": fast, "slow": slow, "truncate": self.truncate}
            keep = published_pair_ramp(len(frequencies), length, **ramp)
        return [k * f + (1 - k) * f / self.factor for f, k in zip(frequencies, keep, strict=True)], self.temperature


def yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """Return 0.1 mscale ln(factor) + 1, or 1 for a factor up to 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1
