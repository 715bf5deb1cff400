"""What the metadata of a GGUF file are read from: its keys, and the small tensors that say of positions."""

import math
from typing import Any

import torch

from posenc.checkpoints.files.tensors import GGUFTensors, Tensors
from posenc.checkpoints.formats.gguf.architectures import TABLES
from posenc.checkpoints.vocabulary.reading import CannotRead

MOST_PAIRS = 1 << 14
"""The pairs of channels that a head may have; what is larger holds no number for each, whatever it is called."""


def metadata(tensors: Tensors) -> dict[str, Any]:
    """The keys of a GGUF file, without its tokenizer, and the small tensors that say of positions."""
    assert isinstance(tensors, GGUFTensors)
    told = {key: as_meant(value) for key, value in tensors.said.items() if not key.startswith("tokenizer.")}
    for name in TABLES:
        if name in tensors:
            # Not read for its name alone: it holds numbers, and no more than a head may have pairs.
            if not (tensors.dtype(name).is_floating_point and 0 < math.prod(tensors.shape(name)) <= MOST_PAIRS):
                wrong = f"it is {list(tensors.shape(name))}, which holds no number for each pair; it was not read"
                raise CannotRead(wrong, file=tensors.path, field=name)
            told[name] = tensors[name].flatten().tolist()
    return told


def as_meant(value: Any) -> Any:
    """A number as it was meant: a file holds 1e-05 as 9.999999747378752e-06, the nearest float32."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    shortest = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((one for one in shortest if torch.tensor(one, dtype=torch.float32).item() == value), value)
