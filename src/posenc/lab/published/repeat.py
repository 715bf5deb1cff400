"""One symbol repeated as often as the prompt does, without position and with it."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import Claim, Inequality
from posenc.lab.published._symbols import FACTORS, SIZES, scores

SPECS = ("none", "t5_bias", "alibi", "rotary", "sinusoidal")


@dataclass(frozen=True, kw_only=True)
class Repeat(Claim):
    """Without position a decoder repeats a symbol as often as asked, at lengths where every encoding breaks.

    Numbers are shares of held-out sequences answered without a mistake at a multiple of the trained length; means are
    over the tested lengths, in the paper over all from just above 1 to 2.

    Source: Kazemnejad et al. 2023, arXiv:2305.19466; means of the logs in its repository (one token, 3 seeds).
    """

    says = "a decoder without position repeats one symbol far beyond the trained length, where encodings have broken"
    source = "Kazemnejad et al. 2023, arXiv:2305.19466, logs of its repository (copy of one repeated token)"
    published = MappingProxyType({
        "none, mean": 0.986, "t5_bias, mean": 0.771, "alibi, mean": 0.289, "rotary, mean": 0.0, "sinusoidal, mean": 0.0,
    })  # fmt: skip
    sizes = SIZES
    criteria = (
        Inequality("none, 1.5", ">=", 0.95),
        Inequality("none, 2", ">=", 0.75),
        *(Inequality(f"{spec}, 2", "<=", "none, 2", plus=-0.3) for spec in ("t5_bias", "alibi")),
        *(Inequality(f"{spec}, 1.2", "<=", 0.05) for spec in ("rotary", "sinusoidal")),
    )

    def runs(self, tier):
        return {spec: recipe("repeat", spec, **self.sizes[tier]) for spec in SPECS}

    def numbers(self, outcomes):
        return scores(outcomes, SPECS, "exact_match", FACTORS)
