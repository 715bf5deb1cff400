"""A random prompt copied beyond the trained length."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import Claim, Inequality
from posenc.lab.published._symbols import FACTORS, MEAN, SIZES, scores

SPECS = ("rotary", "t5_bias")


@dataclass(frozen=True, kw_only=True)
class Copy(Claim):
    """Rotary copies random prompts at the trained length and not beyond it; T5's buckets carry some of them.

    The other half of the claim on repeating one symbol: here content counts, and being without position does not help.
    Numbers are shares of held-out sequences answered without a mistake at a multiple of the trained length; means are
    over the tested lengths, in the paper over all from just above 1 to 2.

    Source: Kazemnejad et al. 2023, arXiv:2305.19466; means of the logs in its repository (copy, 3 seeds). Its rotary
    turns a quarter of the channels.
    """

    says = "rotary copies random prompts and breaks at once beyond the trained length, where T5's buckets carry some"
    source = "Kazemnejad et al. 2023, arXiv:2305.19466, logs of its repository (copy of random tokens)"
    published = MappingProxyType({"rotary, mean": 0.011, "t5_bias, mean": 0.420})
    sizes = SIZES
    criteria = (
        Inequality("rotary, 1.2", "<=", 0.1),
        Inequality("t5_bias, 1.2", ">=", "rotary, 1.2", plus=0.2),
        Inequality(f"t5_bias, {MEAN}", ">=", f"rotary, {MEAN}", plus=0.1),
    )

    def runs(self, tier):
        return {spec: recipe("copy", spec, **self.sizes[tier]) for spec in SPECS}

    def numbers(self, outcomes):
        return scores(outcomes, SPECS, "exact_match", FACTORS)
