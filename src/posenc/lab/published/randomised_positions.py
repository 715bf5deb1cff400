"""Positions drawn at random in training, in encoders."""

from dataclasses import dataclass
from types import MappingProxyType

from posenc.lab.published._claim import CPU, GPU, Claim, Inequality
from posenc.lab.published._symbols import mean
from posenc.lab.recipes import recipe

SPECS = ("sinusoidal", "transformer_xl", "rotary")
FACTORS = (1.2, 1.5, 2, 2.5)


@dataclass(frozen=True, kw_only=True)
class RandomisedPositions(Claim):
    """Encoders whose positions are drawn at random out of a long range carry further than those that count.

    The prompt is read with a blank for each symbol of the answer. Numbers are shares of symbols that are right, as in
    the paper, means over the tested lengths; guessing has a half. The gain is what drawing positions adds.

    Source: Ruoss et al. 2023, arXiv:2305.16843, table 1: 12.0 points more on average over 15 tasks.
    """

    says = "encoders trained on randomly drawn positions answer longer prompts better than those that count"
    source = "Ruoss et al. 2023, arXiv:2305.16843, abstract and table 1"
    published = MappingProxyType({"gain, middle of the encodings": 0.12})
    sizes = MappingProxyType(
        {
            CPU: {"train_length": 12, "layers": 3, "steps": 1500, "batch": 64, "rate": 2e-3},
            GPU: {
                "train_length": 40,
                "layers": 5,
                "heads": 8,
                "steps": 10_000,
                "batch": 128,
                "rate": 1e-3,
                "device": "cuda",
            },
        }
    )
    criteria = (
        Inequality("gain, middle of the encodings", ">=", 0.1),
        Inequality("sinusoidal counted", "<=", 0.65),
    )

    def runs(self, tier):
        sizes = self.sizes[tier]
        drawn = f"randomised(longest={20 * sizes['train_length']})"
        return {
            f"{spec} {how}": recipe("blanks(answer=reverse)", spec, map=by, **sizes)
            for spec in SPECS
            for how, by in (("counted", None), ("drawn", drawn))
        }

    def numbers(self, found):
        right = {
            label: mean([one.score("token_accuracy", factor) for factor in FACTORS]) for label, one in found.items()
        }
        pairs = {spec: (right[f"{spec} drawn"], right[f"{spec} counted"]) for spec in SPECS}
        gains = {
            f"gain, {spec}": None if drawn is None or counted is None else drawn - counted
            for spec, (drawn, counted) in pairs.items()
        }
        known = sorted(gain for gain in gains.values() if gain is not None)
        middle = known[1] if len(known) == len(SPECS) else None
        return {**right, **gains, "gain, middle of the encodings": middle}
