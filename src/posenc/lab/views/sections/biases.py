"""The bias that an encoding adds to the logits at each distance."""

from typing import Any

import torch

from posenc.encoding.base import BIASES, Encoding, Shape, parts_of

REACH = 255
"""The largest distance on each side (positions)."""


@torch.no_grad()
def bias_by_distance(encoding: Encoding, shape: Shape) -> dict[str, Any] | None:
    """Return each head's bias by query minus key; None if it is trained or needs more than distance."""
    parts = [part for part in parts_of(encoding) if part.doors & BIASES]
    is_trained = any(True for part in parts for _ in part.parameters())
    if not parts or is_trained or "biases" in encoding.doors or encoding.axes != 1:
        return None
    distance = torch.arange(-REACH, REACH + 1, dtype=torch.float64)
    heads = encoding.by_distance(distance)
    assert heads is not None
    return {"distance": distance.long().tolist(), "heads": heads.tolist()}
