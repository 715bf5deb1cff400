"""The table that an encoding adds to embeddings."""

import torch

from posenc.encoding.base import Encoding, Shape
from posenc.tokens.positions import Positions


@torch.no_grad()
def added_table(encoding: Encoding, shape: Shape) -> list[list[float]] | None:
    """Return what is added [max_len][dim]; None if nothing is, if it is trained, or with several axes.

    >>> from posenc import Sinusoidal
    >>> added_table(Sinusoidal(4), Shape.of(dim=4, heads=1, max_len=2))[0]
    [0.0, 1.0, 0.0, 1.0]
    """
    if "embed" not in encoding.doors or encoding.axes > 1 or any(True for _ in encoding.parameters()):
        return None
    positions = Positions.count(shape.max_len)
    return encoding.embed(torch.zeros(1, positions.tokens, shape.dim, dtype=torch.float64), positions)[0].tolist()
