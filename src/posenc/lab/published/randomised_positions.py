"""Positions drawn at random in training, in encoders."""

from dataclasses import dataclass
from statistics import mean
from types import MappingProxyType

from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import CPU, GPU, Claim, Inequality
from posenc.lab.published._symbols import LARGER

SPECS = ("sinusoidal", "rotary")
FACTORS = (1.2, 1.5, 2, 2.5)


@dataclass(frozen=True, kw_only=True)
class RandomisedPositions(Claim):
    """Encoders whose positions are drawn at random out of a long range carry further than those that count.

    The prompt is read with a blank for each symbol of the answer, which is the prompt backwards. Numbers are shares of
    symbols that are right, as in the paper, means over the tested lengths; guessing has a half. The gain is what
    drawing positions adds. Those of the mechanism are of models that need not have learned the trained lengths.

    Source: Ruoss et al. 2023, arXiv:2305.16843, table 1: 12.0 points more on average over 15 tasks.
    """

    says = "encoders trained on randomly drawn positions answer longer prompts better than those that count"
    source = "Ruoss et al. 2023, arXiv:2305.16843, abstract and table 1"
    published = MappingProxyType({"gain, rotary": 0.12, "gain, sinusoidal": 0.12})
    sizes = MappingProxyType(
        {
            CPU: {"train_length": 12, "layers": 3, "steps": 1000, "batch": 64, "rate": 2e-3},
            GPU: LARGER | {"train_length": 40, "layers": 5, "dim": 64, "steps": 10_000, "rate": 1e-3},
        }
    )
    criteria = tuple(Inequality(f"gain, {spec}", ">=", 0.1) for spec in SPECS)
    untestable = MappingProxyType({CPU: "with positions drawn, a task is not learned in minutes on a CPU"})
    mechanism = (Inequality("gain, learned or not, rotary", ">=", 0.1),)

    def runs(self, tier):
        sizes = self.sizes[tier]
        drawn = f"randomised(longest={20 * sizes['train_length']})"
        return {
            f"{spec}, {how}": recipe("blanks(answer=reverse)", spec, map=by, **sizes)
            for spec in SPECS
            for how, by in (("counted", None), ("drawn", drawn))
        }

    def numbers(self, found):
        right = {
            label: mean(one.unlearned("token_accuracy", factor) for factor in FACTORS) for label, one in found.items()
        }
        numbers: dict[str, float | None] = dict(right)
        for spec in SPECS:
            drawn, counted = f"{spec}, drawn", f"{spec}, counted"
            gain = right[drawn] - right[counted]
            numbers[f"gain, learned or not, {spec}"] = gain
            numbers[f"gain, {spec}"] = gain if found[drawn].learned and found[counted].learned else None
        return numbers
