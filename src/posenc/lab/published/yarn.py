"""YaRN after some tuning, and why it cannot be had at a short trained length."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.published._claim import CPU, Claim, Inequality
from posenc.lab.published._text import language_model
from posenc.lab.published._trained import tuned_to, with_each

TUNED = ("yarn", "ntk", "linear")
PARTS = MappingProxyType(
    {
        "32 turns": "rotary(schedule=ntk_by_parts(factor={factor}, beta=32))",
        "4 turns": "rotary(schedule=ntk_by_parts(factor={factor}, beta=4))",
    }
)
FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class Yarn(Claim):
    """Tuned a little to twice the length, YaRN is ahead of a larger base, at the old length and at the new one.

    One trained model is tuned with each schedule on sequences of twice the length, for a tenth of its training.
    yarn / ntk is the perplexity of one beside the other at a multiple of the trained length.

    YaRN keeps pairs that turn 32 times in the trained length. Below 201 tokens there is none: all are squeezed, and
    untuned that is worse than a ramp that ends at 4 turns.

    Source: Peng et al. 2023, arXiv:2309.00071, table 1 (Llama 2 7B, from 4096 to 8192 tokens).
    """

    says = "tuned a little to twice the length, YaRN is ahead of NTK-aware scaling at both lengths"
    source = "Peng et al. 2023, arXiv:2309.00071, table 1"
    published = MappingProxyType(
        {"yarn / ntk, 1": 3.51 / 3.75, "yarn / ntk, 2": 3.36 / 3.59, "yarn / linear, 2": 3.36 / 3.34}
    )
    criteria = (
        Inequality("yarn / ntk, 1", "<=", 0.99),
        Inequality("yarn / ntk, 2", "<=", 0.99),
    )
    untestable = MappingProxyType(
        {CPU: "with a trained length below 201 no pair turns 32 times, so that YaRN squeezes all of them"}
    )
    mechanism = (Inequality("untuned R(32 turns, 2)", ">=", "untuned R(4 turns, 2)", times=1.05),)
    looked_into = ("rotary",)

    def runs(self, tier):
        return {"rotary": language_model(tier, "rotary")}

    def look_into(self, run):
        specs = {name: f"rotary(schedule={name}(factor={FACTOR}))" for name in TUNED}
        return with_each(run, PARTS) | {
            name: tuned_to(run, spec, run.experiment.steps // 10, FACTOR) for name, spec in specs.items()
        }

    def numbers(self, found):
        model = found["rotary"]
        untuned = {f"untuned R({name}, 2)": model.ratio(2, name) for name in PARTS}
        return untuned | {
            f"yarn / {name}, {k}": None if not model.learned else model.ratio(k, "yarn") / model.ratio(k, name)
            for name in TUNED[1:]
            for k in (1, 2)
        }
