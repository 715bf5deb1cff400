"""What the claims on symbols share: how large they are on an accelerator, and shares at multiples of a length."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from posenc.lab.published._claim import CPU, GPU, Numbers, Outcome, Sizes

FACTORS = (1.2, 1.5, 2)
"""The tested lengths, as multiples of the trained one."""

MEAN = "mean"


LARGER = MappingProxyType({"layers": 6, "dim": 256, "heads": 8, "batch": 256, "rate": 3e-4, "device": "cuda"})
"""Of models of symbols on an accelerator."""

SIZES: Sizes = MappingProxyType({CPU: {}, GPU: LARGER | {"train_length": 20, "steps": 20_000, "cool_down": 0}})
"""Of the tasks that say a prompt again."""


def scores(found: Mapping[str, Outcome], labels: Sequence[str], measure: str, factors: Sequence[float]) -> Numbers:
    """A measure of each run at multiples of the trained length, "label, factor", and its mean over these."""
    numbers: dict[str, float | None] = {}
    for label in labels:
        own = {factor: found[label].score(measure, factor) for factor in factors}
        numbers |= {f"{label}, {factor:g}": score for factor, score in own.items()}
        numbers[f"{label}, {MEAN}"] = mean(list(own.values()))
    return numbers


def mean(values: Sequence[float | None]) -> float | None:
    """None where one is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if len(known) == len(values) else None
