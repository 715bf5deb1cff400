"""T5's buckets and the trained length."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.published._claim import Claim, Inequality
from posenc.lab.published._text import FACTORS, language_model

RANGES = ("within", "beyond")


@dataclass(frozen=True, kw_only=True)
class T5Buckets(Claim):
    """T5's bias carries on where its last bucket begins within the trained length: else there are untrained buckets.

    The same bias with its max_distance within the trained length and four times beyond it. In range both are one
    model; at test time the buckets between are met for the first time.

    Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1: 32 buckets up to 128, trained on 512; the number is of
    Press et al. 2021, arXiv:2108.12409, table 2.
    """

    says = "T5's buckets carry on when the last begins within the trained length, and look bad when it begins beyond"
    source = "Raffel et al. 2019, arXiv:1910.10683, section 2.1; Press et al. 2021, arXiv:2108.12409, table 2"
    published = MappingProxyType({"R(within, 2)": 18.79 / 19.65})
    criteria = (
        Inequality("bits per byte, beyond", "<=", "bits per byte, within", plus=0.05),
        Inequality("bits per byte, beyond", ">=", "bits per byte, within", plus=-0.05),
        Inequality("R(beyond, 2)", ">=", "R(within, 2)", plus=0.03),
        Inequality("R(beyond, 4)", ">=", "R(within, 4)", plus=0.1),
        Inequality("R(beyond, 8)", ">=", "R(within, 8)", plus=0.1),
    )

    def runs(self, tier):
        within_run = language_model(tier, "t5_bias")  # whose hint keeps the last bucket within the trained length
        return {
            "within": within_run,
            "beyond": language_model(tier, f"t5_bias(max_distance={4 * within_run.train_length}, std=0.02)"),
        }

    def numbers(self, outcomes):
        bits = {f"bits per byte, {name}": outcomes[name].score("bits_per_byte") for name in RANGES}
        return bits | {f"R({name}, {k})": outcomes[name].ratio(k) for name in RANGES for k in FACTORS}
