"""KERPLE beyond the trained length."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.published._claim import Claim, Inequality
from posenc.lab.published._text import FACTORS, language_model

SPECS = ("rotary", "t5_bias", "alibi", "kerple")


@dataclass(frozen=True, kw_only=True)
class Kerple(Claim):
    """A learned logarithm of the distance is flat to many times the trained length, where T5's buckets rise.

    R(encoding, k) is the perplexity at k times the trained length beside that at the trained one. In the paper T5's
    rises from 16 times on; a small model meets the same sooner.

    Source: Chi et al. 2022, arXiv:2205.09921, table 3 (ArXiv, trained on 512; mean of 5 seeds).
    """

    says = "KERPLE's logarithm stays flat to eight times the trained length, as ALiBi does, and T5's buckets rise"
    source = "Chi et al. 2022, arXiv:2205.09921, table 3"
    published = MappingProxyType({
        "R(rotary, 2)": 7.49 / 6.07, "R(rotary, 4)": 14.2 / 6.07, "R(rotary, 8)": 30.1 / 6.07,
        "R(t5_bias, 2)": 5.58 / 6.03, "R(t5_bias, 4)": 5.21 / 6.03, "R(t5_bias, 8)": 5.32 / 6.03,
        "R(alibi, 2)": 5.82 / 6.12, "R(alibi, 4)": 5.71 / 6.12, "R(alibi, 8)": 5.87 / 6.12,
        "R(kerple, 2)": 5.61 / 6.07, "R(kerple, 4)": 5.22 / 6.07, "R(kerple, 8)": 5.20 / 6.07,
        "R(t5_bias, 32)": 6.25 / 6.03, "R(kerple, 32)": 5.07 / 6.07,
    })  # fmt: skip
    criteria = (
        Inequality("R(kerple, 8)", "<=", 1.1),
        Inequality("R(alibi, 8)", "<=", 1.1),
        Inequality("R(rotary, 4)", ">=", 1.5),
        Inequality("R(t5_bias, 8)", ">=", "R(kerple, 8)", plus=0.2),
    )

    def runs(self, tier):
        return {spec: language_model(tier, spec) for spec in SPECS}

    def numbers(self, outcomes):
        return {f"R({spec}, {k})": outcomes[spec].ratio(k) for spec in SPECS for k in FACTORS}
