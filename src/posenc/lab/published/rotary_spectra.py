"""Frequency schedules on a rotary model that was not tuned to them."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.published._claim import Claim, Inequality
from posenc.lab.published._text import FACTORS, language_model
from posenc.lab.published._trained import scores_around

SCHEDULES = MappingProxyType(
    {
        "ntk": "rotary(schedule=ntk(factor={factor}))",
        "ntk of 2k": "rotary(schedule=ntk(factor={twice}))",
        "linear": "rotary(schedule=linear(factor={factor}))",
        "llama3": "rotary(schedule=llama3(factor={factor}))",
    }
)


@dataclass(frozen=True, kw_only=True)
class RotarySpectra(Claim):
    """Untuned, a larger base helps a rotary model beyond its length. Squeezed positions cost it much at any length.

    One trained model is evaluated under each schedule. R(schedule, k) is the perplexity at k times the trained length
    under the schedule for k, beside the model as it was trained; R(plain, k) without one.

    Source: bloc97 2023 and Peng et al. 2023, arXiv:2309.00071, section 3.1 (NTK-aware scaling); the number is of Chen
    et al. 2023, arXiv:2306.15595, section 3.3: LLaMA 7B of 2048 tokens squeezed 4 times, untuned 16.10, plain 7.20.
    """

    says = "untuned, NTK-aware scaling is ahead of plain rotary and of squeezing, and more so with a larger factor"
    source = "Peng et al. 2023, arXiv:2309.00071, section 3.1; Chen et al. 2023, arXiv:2306.15595, section 3.3"
    published = MappingProxyType({"R(linear, 4)": 16.10 / 7.20})
    criteria = (
        *(Inequality(f"R(ntk, {k})", "<=", f"R(plain, {k})", times=0.95) for k in (2, 4)),
        *(Inequality(f"R(ntk, {k})", "<=", f"R(linear, {k})", times=0.95) for k in (2, 4)),
        *(Inequality(f"R(linear, {k})", ">=", 1.2) for k in (2, 4)),
        *(Inequality(f"R(ntk of 2k, {k})", "<=", f"R(ntk, {k})") for k in (4, 8)),
    )
    looked_into = ("rotary",)

    def runs(self, tier):
        return {"rotary": language_model(tier, "rotary")}

    def look_into(self, run):
        return scores_around(run, SCHEDULES)

    def numbers(self, outcomes):
        model = outcomes["rotary"]
        plain = {f"R(plain, {k})": model.ratio(k) for k in FACTORS}
        return plain | {f"R({name}, {k})": model.ratio(k, name) for name in SCHEDULES for k in FACTORS}
