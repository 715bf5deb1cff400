"""Shared by the claims on symbols: sizes on an accelerator, and scores at multiples of a length."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from posenc.lab.published._claim import CPU, GPU, Numbers, Outcome, Sizes

FACTORS = (1.2, 1.5, 2)
"""The tested lengths, as multiples of the trained one."""

MEAN = "mean"


LARGER = MappingProxyType({"layers": 6, "dim": 256, "heads": 8, "batch": 256, "rate": 3e-4, "device": "cuda"})
"""The size of models of symbols on an accelerator."""

SIZES: Sizes = MappingProxyType({CPU: {}, GPU: LARGER | {"train_length": 20, "steps": 20_000, "cool_down": 0}})
"""The sizes of the tasks that repeat a prompt."""


def scores(outcomes: Mapping[str, Outcome], labels: Sequence[str], measure: str, factors: Sequence[float]) -> Numbers:
    """Return each run's measure at multiples of the trained length, by "label, factor", and its mean."""
    numbers: dict[str, float | None] = {}
    for label in labels:
        by_factor = {factor: outcomes[label].score(measure, factor) for factor in factors}
        numbers |= {f"{label}, {factor:g}": score for factor, score in by_factor.items()}
        numbers[f"{label}, {MEAN}"] = mean_if_complete(list(by_factor.values()))
    return numbers


def mean_if_complete(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    complete = [value for value in values if value is not None]
    return sum(complete) / len(values) if len(complete) == len(values) else None
