"""Positions taken away from a trained model, and some more training without them."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.published._claim import CPU, Claim, Inequality
from posenc.lab.published._text import FACTORS, language_model
from posenc.lab.published._trained import tuned_to, with_each


@dataclass(frozen=True, kw_only=True)
class Drope(Claim):
    """A rotary model that drops its positions at the end of training is as good in range and carries beyond it.

    One trained model goes on without position for a fifth of its training, on the same lengths. Beside
    R(drope, k), its perplexity at k times the trained length beside its own at the trained one, stands what the drop
    costs in range: its perplexity there beside that of the rotary model.

    Source: Gelberg et al. 2025, "DroPE" (494M parameters, trained on 1024): validation perplexity 21.73 where position
    is dropped after 14 of 16 thousand steps, and 21.72 with rotary to the end.
    """

    says = "a rotary model trained on without position is as good in range, and flat beyond it"
    source = "Gelberg et al. 2025, arXiv:2512.12167, validation perplexity by the step of the drop"
    published = MappingProxyType({"drope / rotary, 1": 21.73 / 21.72})
    criteria = (
        Inequality("drope / rotary, 1", "<=", 1.02),
        Inequality("R(drope, 8)", "<=", 1.3),
        Inequality("R(rotary, 8)", ">=", 1.5),
    )
    untestable = MappingProxyType(
        {CPU: "a model of two layers without position is far behind in range, dropped or not; this takes six and more"}
    )
    mechanism = criteria[1:]
    looked_into = ("rotary",)

    def runs(self, tier):
        return {"rotary": language_model(tier, "rotary")}

    def look_into(self, run):
        at_once = with_each(run, {"dropped": "none"})
        return at_once | {"drope": tuned_to(run, "none", run.experiment.steps // 5)}

    def numbers(self, found):
        model = found["rotary"]
        in_range = model.ratio(1, "drope")
        beyond = {f"R(drope, {k})": None if in_range is None else model.ratio(k, "drope") / in_range for k in FACTORS}
        return {
            "drope / rotary, 1": in_range,
            "dropped at once / rotary, 1": model.ratio(1, "dropped"),
            **beyond,
            **{f"R(rotary, {k})": model.ratio(k) for k in FACTORS},
        }
