"""ALiBi beyond the trained length."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.published._claim import Claim, Inequality
from posenc.lab.published._text import FACTORS, language_model

SPECS = ("sinusoidal", "rotary", "t5_bias", "alibi")


@dataclass(frozen=True, kw_only=True)
class Alibi(Claim):
    """Train short, test long: perplexity beyond the trained length by encoding.

    R(encoding, k) is the perplexity at k times the trained length beside that at the trained one, over windows that do
    not overlap. The negative control asks the same bytes at every length (sliding windows): there ALiBi must not gain,
    or the evaluation rewards long windows for having fewer bytes at their start.

    Source: Press et al. 2021, arXiv:2108.12409, tables 2 and 3 (WikiText-103, trained on 512), appendix B.
    """

    says = "ALiBi keeps its perplexity at lengths where sinusoidal loses it at once, and rotary soon after"
    source = "Press et al. 2021, arXiv:2108.12409, tables 2 and 3, appendix B"
    # At 512 and 1012 tokens; sliding: at 512 and 1024.
    published = MappingProxyType(
        {"R(sinusoidal, 2)": 43.54 / 20.05, "R(rotary, 2)": 21.37 / 20.07, "R(t5_bias, 2)": 18.79 / 19.65}
        | {"R(alibi, 2)": 18.73 / 19.73, "sliding R(alibi, 2)": 17.92 / 17.98}
    )
    criteria = (
        Inequality("R(sinusoidal, 2)", ">=", 1.5),
        Inequality("R(rotary, 2)", ">=", 1.05),
        Inequality("R(rotary, 4)", ">=", 1.5),
        *(Inequality(f"R(alibi, {k})", ">=", 0.95) for k in FACTORS),
        *(Inequality(f"R(alibi, {k})", "<=", 1.05) for k in FACTORS),
        *(Inequality(f"R(sinusoidal, {k})", ">=", f"R(rotary, {k})", times=1.05) for k in (2, 4)),
        *(Inequality(f"R(rotary, {k})", ">=", f"R(alibi, {k})", times=1.05) for k in (2, 4)),
        Inequality("R(t5_bias, 2)", "<=", "R(rotary, 4)", times=0.95),
        *(Inequality(f"sliding R(alibi, {k})", ">=", 0.98) for k in FACTORS),
    )

    def runs(self, tier):
        return {spec: language_model(tier, spec) for spec in SPECS}

    def numbers(self, outcomes):
        flat = {f"R({spec}, {k})": outcomes[spec].ratio(k) for spec in SPECS for k in FACTORS}
        alibi, measure = outcomes["alibi"], "sliding_bits_per_byte"
        return flat | {f"sliding R(alibi, {k})": alibi.ratio(k, measure=measure) for k in FACTORS}
