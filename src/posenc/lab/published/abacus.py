"""Addition with digits that know their significance."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import CPU, GPU, Claim, Inequality
from posenc.lab.published._symbols import LARGER

TASK, SPEC = "addition(reversed=all)", "learned(std=1.0)"
"""With the small table that is usual beside tokens, digits that move are not learned in minutes."""

FACTORS = (1.5, 2)


@dataclass(frozen=True, kw_only=True)
class Abacus(Claim):
    """Digits counted from the first of their number make addition carry to longer numbers, once offsets train the rows.

    The runs differ in where tokens stand: digits counted within their number and moved at random in training, the same
    without moving, or (on an accelerator) all tokens counted. Numbers are shares of sums without a mistake, and of
    their digits, at a multiple of the trained number of digits.

    Source: McLeish et al. 2024, arXiv:2405.17399, section 4: up to 99 % at five times the trained length (100 of 20
    digits), with 24 hours of one accelerator.
    """

    says = "places of digits within their number, moved at random in training, make addition carry to longer numbers"
    source = "McLeish et al. 2024, arXiv:2405.17399, section 4"
    published = MappingProxyType({"sums right, abacus, 5": 0.99})
    sizes = MappingProxyType(
        {
            CPU: {"train_length": 4, "test_lengths": (6, 8), "steps": 1600, "batch": 64, "rate": 2e-3, "cool_down": 0},
            GPU: LARGER | {"train_length": 20, "test_lengths": (30, 40), "steps": 20_000, "dim": 512, "cool_down": 0},
        }
    )
    criteria = (
        Inequality("sums right, abacus, 2", ">=", 0.9),
        Inequality("sums right, abacus without offsets, 2", "<=", 0.3),
        Inequality("sums right, plain, 2", "<=", 0.3),
    )
    untestable = MappingProxyType({CPU: "in minutes on a CPU longer sums come out in small part, if at all"})
    mechanism = (
        Inequality("sums right, abacus without offsets, 1.5", "<=", 0.05),
        Inequality("digits right, abacus, 1.5", ">=", "digits right, abacus without offsets, 1.5", plus=0.1),
    )

    def runs(self, tier):
        sizes = self.sizes[tier]
        trained = sizes["train_length"]
        maps = {"abacus": f"abacus(first_digit=3, most={trained})", "abacus without offsets": "abacus(first_digit=3)"}
        if tier not in self.untestable:
            maps["plain"] = None
        return {label: recipe(TASK, SPEC, map=one, **sizes) for label, one in maps.items()}

    def numbers(self, found):
        measures = {"sums right": "exact_match", "digits right": "token_accuracy"}
        return {
            f"{words}, {label}, {k:g}": one.score(measure, k)
            for words, measure in measures.items()
            for label, one in found.items()
            for k in FACTORS
        }
