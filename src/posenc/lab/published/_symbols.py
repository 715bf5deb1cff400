"""What the claims on symbols share: how large they are on an accelerator, and shares at multiples of a length."""

from collections.abc import Mapping, Sequence
from typing import Any

from posenc.lab.published._claim import GPU, Numbers, Outcome

FACTORS = (1.2, 1.5, 2)
"""The tested lengths, as multiples of the trained one."""

MEAN = "mean"


def sizes(tier: str, **changes: Any) -> dict[str, Any]:
    """Changes of a task's recipe for a tier: none on the CPU."""
    if tier != GPU:
        return {}
    larger = {"layers": 6, "dim": 256, "heads": 8, "batch": 256, "rate": 3e-4, "device": "cuda"}
    return larger | {"train_length": 20, "steps": 20_000, "cool_down": 0} | changes


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
