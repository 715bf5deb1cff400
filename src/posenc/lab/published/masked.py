"""Masked prediction without position, beside the next token's."""

from dataclasses import dataclass
from math import exp
from types import MappingProxyType

from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import CPU, GPU, Claim, Inequality
from posenc.lab.published._symbols import LARGER
from posenc.lab.published._text import language_model
from posenc.lab.published._trained import held_out_loss

SPECS = ("none", "sinusoidal", "rotary")
SMALL = MappingProxyType(
    {"train_length": 16, "test_lengths": (), "batch": 32, "rate": 3e-3, "steps": 600, "cool_down": 0}
)


@dataclass(frozen=True, kw_only=True)
class Masked(Claim):
    """An encoder without position cannot say what is masked; a causal decoder without position is nearly as good.

    The encoder's task is a made language in which a masked symbol follows from those some steps away. Numbers are
    perplexities of what is asked for, of the model without position beside one with it.

    Source: Haviv et al. 2022, arXiv:2203.16634, tables 1 and 3: masked on the Pile 147.18 without and 4.06 with learned
    positions, 4.07 with sinusoidal; causal on WikiText-103 20.97, 20.42 and 20.16.
    """

    says = "without position a masked language model fails, and a causal one is nearly as good as with it"
    source = "Haviv et al. 2022, arXiv:2203.16634, the tables of masked and causal language models"
    published = MappingProxyType(
        {"masked, none / sinusoidal": 147.18 / 4.07, "causal, none / sinusoidal": 20.97 / 20.16}
    )
    sizes = MappingProxyType({CPU: SMALL, GPU: SMALL | LARGER | {"steps": 3000}})
    criteria = (
        *(Inequality(f"masked, none / {spec}", ">=", 3) for spec in SPECS[1:]),
        Inequality("causal, none / sinusoidal", "<=", 1.5),
        Inequality("masked, none / sinusoidal", ">=", "causal, none / sinusoidal", times=2),
    )
    looked_into = tuple(f"masked, {spec}" for spec in SPECS)

    def runs(self, tier):
        masked = {f"masked, {spec}": recipe("masked_symbols", spec, **self.sizes[tier]) for spec in SPECS}
        return masked | {f"causal, {spec}": language_model(tier, spec) for spec in SPECS[:2]}

    def look_into(self, run):
        return {"asked": held_out_loss(run)}

    def numbers(self, outcomes):
        base_loss = outcomes["masked, none"].raw_score("loss", extra="asked")
        numbers: dict[str, float | None] = {}
        for spec in SPECS[1:]:
            loss = outcomes[f"masked, {spec}"].score("loss", extra="asked")
            numbers[f"masked, none / {spec}"] = None if loss is None else exp(base_loss - loss)
        bits = outcomes["causal, sinusoidal"].score("bits_per_byte")
        bits_lost = None if bits is None else outcomes["causal, none"].raw_score("bits_per_byte") - bits
        numbers["causal, none / sinusoidal"] = None if bits_lost is None else 2**bits_lost
        return numbers
