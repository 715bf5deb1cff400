"""The language model of claims about text: bytes of the standard library, on the CPU by recipe."""

from types import MappingProxyType

from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import CPU, GPU, Sizes
from posenc.lab.tasks.text import Text

FACTORS = (2, 4, 8)
"""The tested lengths, as multiples of the trained one."""

LARGER = {"train_length": 512, "steps": 3000, "batch": 64, "rate": 1e-3, "layers": 6, "dim": 384, "heads": 6}
SIZES: Sizes = MappingProxyType({CPU: {}, GPU: {**LARGER, "device": "cuda", "dtype": "bfloat16"}})


def language_model(tier: str, spec: str) -> Experiment:
    """Return the run of one encoding at the size of a tier."""
    train_length = SIZES[tier].get("train_length", Text.recipe["train_length"])
    return recipe("text", spec, test_lengths=tuple(k * train_length for k in FACTORS), **SIZES[tier])
