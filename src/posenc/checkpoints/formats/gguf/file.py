"""The metadata of a GGUF file: its keys, and its small tensors of positions."""

import math
from typing import Any

import torch

from posenc.checkpoints.files.tensors import GGUFTensors, Tensors
from posenc.checkpoints.formats.gguf.architectures import TABLES
from posenc.checkpoints.vocabulary.reading import CannotRead

MOST_PAIRS = 1 << 14
"""The most pairs of channels in a head; a larger tensor has no number for each."""


def metadata(tensors: Tensors) -> dict[str, Any]:
    """Return the keys of a GGUF file, without its tokenizer, and its small tensors of positions."""
    assert isinstance(tensors, GGUFTensors)
    keys = {key: shortest_decimal(value) for key, value in tensors.metadata.items() if not key.startswith("tokenizer.")}
    for name in TABLES:
        if name in tensors:
            # Its dtype and size are checked before it is read.
            if not (tensors.dtype(name).is_floating_point and 0 < math.prod(tensors.shape(name)) <= MOST_PAIRS):
                wrong = f"it is {list(tensors.shape(name))}, which holds no number for each pair; it was not read"
                raise CannotRead(wrong, file=tensors.path, field=name)
            keys[name] = tensors[name].flatten().tolist()
    return keys


def shortest_decimal(value: Any) -> Any:
    """Return the shortest decimal of a float32: a file has 1e-05 as 9.999999747378752e-06."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    shortest = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((number for number in shortest if torch.tensor(number, dtype=torch.float32).item() == value), value)
