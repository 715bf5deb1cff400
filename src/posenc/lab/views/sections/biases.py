"""What door 3 adds at each distance, where that is known without training."""

from typing import Any

import torch

from posenc.encoding.base import BIASES, Encoding, Shape, parts_of

REACH = 255
"""The largest distance on each side (positions)."""


@torch.no_grad()
def of(encoding: Encoding, shape: Shape) -> dict[str, Any] | None:
    """The bias of every head by signed distance, query minus key; None where training decides it, or more is read."""
    biased = [part for part in parts_of(encoding) if part.doors & BIASES]
    trained = any(True for part in biased for _ in part.parameters())
    if not biased or trained or "biases" in encoding.doors or encoding.axes != 1:
        return None
    distance = torch.arange(-REACH, REACH + 1, dtype=torch.float64)
    heads = encoding.by_distance(distance)
    assert heads is not None
    return {"distance": distance.long().tolist(), "heads": heads.tolist()}
