"""ALiBi."""

import math

import torch
from torch import Tensor

from posenc.encoding import Encoding


class ALiBi(Encoding):
    """Subtract from each logit a per-head slope times the distance.

    logit(i, j) = scale * q_i . k_j - slope_h |m_i - n_j|

    For H a power of two, slope_h = 2^(-8 h/H) for h = 1..H (logit per position). Otherwise, as in the authors' code,
    the slopes of the power of two below H, followed by every other slope of the power of two above. Nothing is learned,
    and the bias is added after the scaling: it is not divided by sqrt(head_dim).

    heads  number of heads, any number from 1

    With a causal mask this is the published encoding. Bidirectional attention sees the symmetric form. Positions may be
    fractional, and queries and keys may stand on different tokens.

    Where it goes wrong: it does not use longer context, it ignores it. A head sees about 7/slope tokens (a weight of
    e^-7), and perplexity beyond the trained length stays flat for that reason; the published improvement is the effect
    of windows whose first tokens have little to look at. A far needle is out of reach.

    Raises ValueError for fewer than one head.
    Source: Press, Smith, Lewis 2021, arXiv:2108.12409, section 3.

    >>> ALiBi(2).bias(3, causal=True)[0, 0]
    tensor([[-0.0000,    -inf,    -inf],
            [-0.0625, -0.0000,    -inf],
            [-0.1250, -0.0625, -0.0000]])
    """

    source = "Press, Smith, Lewis 2021, arXiv:2108.12409, section 3"
    also_called = ("linear_bias",)

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads must be 1 or more, got {heads}")
        self.heads = heads

    @property
    def slopes(self) -> list[float]:
        """The slope of each head (logit per position)."""
        below = 2 ** int(math.log2(self.heads))
        first = [2.0 ** (-8 * h / below) for h in range(1, below + 1)]
        second = [2.0 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1, 2)]
        return first + second[: self.heads - below]

    def by_distance(self, delta: Tensor) -> Tensor:
        delta = delta if delta.dtype == torch.float64 else delta.float()
        slopes = torch.tensor(self.slopes, dtype=delta.dtype, device=delta.device)
        return -slopes.view(-1, *(1,) * delta.dim()) * delta.abs()

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        H = self.heads
        if H & (H - 1) == 0:
            slope = 2 ** (-8 * (head + 1) / H)
        else:
            near = 1 << (H.bit_length() - 1)
            slope = 2 ** (-8 * (head + 1) / near) if head < near else 2 ** (-4 * (2 * (head - near) + 1) / near)
        return super().formula_logit(q, k, m, n, head, scale) - slope * abs(m - n)
