"""What an encoding adds at each position, where that is fixed."""

import torch

from posenc.encoding.base import Encoding, Shape
from posenc.tokens.positions import Positions


@torch.no_grad()
def of(encoding: Encoding, shape: Shape) -> list[list[float]] | None:
    """What is added [max_len][dim]; None where nothing is, where training decides, or along several axes.

    >>> from posenc import Sinusoidal
    >>> of(Sinusoidal(4), Shape.of(dim=4, heads=1, max_len=2))[0]
    [0.0, 1.0, 0.0, 1.0]
    """
    if "embed" not in encoding.doors or encoding.axes > 1 or any(True for _ in encoding.parameters()):
        return None
    at = Positions.count(shape.max_len)
    return encoding.embed(torch.zeros(1, at.tokens, shape.dim, dtype=torch.float64), at)[0].tolist()
