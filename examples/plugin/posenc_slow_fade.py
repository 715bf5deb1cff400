"""An encoding of another package: `posenc check slow_fade` holds it to the contract once the package is installed."""

import math

import torch
from torch import Tensor

from posenc import Encoding


class SlowFade(Encoding):
    """Take from each logit the logarithm of the distance, counted from where the fade begins.

    logit(i, j) = scale q_i . k_j - log(1 + |m_i - n_j| / start)

    heads  number of heads
    start  the distance at which a logit has lost log 2 (positions, above 0)

    Where it goes wrong: it is the same in all heads, so that none looks far.

    Raises ValueError for less than one head, and for a start that is not above 0.
    Source: posenc's example of a plug-in, 2026.
    """

    source = "posenc's example of a plug-in, 2026"

    def __init__(self, heads: int, start: float = 16.0) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads must be 1 or more, got {heads}")
        if not 0 < start < math.inf:
            raise ValueError(f"start must be a finite number above 0 (positions), got {start}")
        self.heads, self.start = heads, start

    def by_distance(self, delta: Tensor) -> Tensor:  # [...] -> [H, ...]
        distance = delta.abs().to(torch.promote_types(delta.dtype, torch.float32))
        return (-(distance / self.start).log1p()).expand(self.heads, *delta.shape)

    def formula_logit(self, q, k, m, n, head, scale):
        return super().formula_logit(q, k, m, n, head, scale) - math.log(1 + abs(m - n) / self.start)
