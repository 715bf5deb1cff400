"""The language model that claims about text are run on: bytes of the standard library."""

from types import MappingProxyType
from typing import Any

from posenc.lab.experiment import Experiment
from posenc.lab.published._claim import CPU, GPU
from posenc.lab.recipes import recipe

FACTORS = (2, 4, 8)
"""The tested lengths, as multiples of the trained one."""

SIZES = MappingProxyType(
    {
        CPU: {"train_length": 32, "steps": 800, "batch": 32, "rate": 3e-3},
        GPU: {
            "train_length": 512,
            "steps": 3000,
            "batch": 64,
            "rate": 1e-3,
            "layers": 6,
            "dim": 384,
            "heads": 6,
            "device": "cuda",
            "dtype": "bfloat16",
        },
    }
)


def language_model(tier: str, spec: str, **changes: Any) -> Experiment:
    """The run of one encoding, as large as a tier has it."""
    sizes = SIZES[tier] | changes
    return recipe("text", spec, test_lengths=tuple(k * sizes["train_length"] for k in FACTORS), **sizes)
