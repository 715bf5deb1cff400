"""ReRoPE on a rotary model that was not tuned to it."""

from dataclasses import dataclass
from math import exp
from types import MappingProxyType

from posenc.lab.published._claim import Claim, Inequality
from posenc.lab.published._text import FACTORS, language_model
from posenc.lab.published._trained import scores_around


@dataclass(frozen=True, kw_only=True)
class Rerope(Claim):
    """A rotary model that is shown no distance beyond a window stays as good at any length, untuned.

    One trained model is evaluated as it is and with distances clipped at half the trained length. R(name, k) is the
    perplexity at k times the trained length beside the model as it was trained.

    Source: Su 2023, github.com/bojone/rerope: Llama-2-13B has a loss of 1.50, 1.43 and 1.40 at 4, 8 and 16 thousand.
    """

    says = "untuned, a rotary model with distances clipped within the trained length loses nothing beyond it"
    source = "Su 2023, github.com/bojone/rerope, table of losses"
    published = MappingProxyType({"R(rerope, 2)": exp(1.43 - 1.50), "R(rerope, 4)": exp(1.40 - 1.50)})
    criteria = (*(Inequality(f"R(rerope, {k})", "<=", 1.1) for k in FACTORS), Inequality("R(plain, 4)", ">=", 1.5))
    looked_into = ("rotary",)

    def runs(self, tier):
        return {"rotary": language_model(tier, "rotary")}

    def look_into(self, run):
        return scores_around(run, {"rerope": f"rerope(rotary, window={run.experiment.train_length // 2})"})

    def numbers(self, outcomes):
        model = outcomes["rotary"]
        plain = {f"R(plain, {k})": model.ratio(k) for k in FACTORS}
        return plain | {f"R(rerope, {k})": model.ratio(k, "rerope") for k in FACTORS}
