"""T5's relative bias."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.tokens.shared_tables import number_tensor


class T5Bias(Encoding):
    """Add to each logit a learned number for its head and its bucket of distances.

    logit(i, j) = scale * q_i . k_j + table[bucket(m_i - n_j), h]

    Causal, with N = buckets and e = N/2: distance d gets bucket d below e, and e + floor(ln(d/e)/ln(max_distance/e) (N
    - e)) from there, at most N - 1; the future shares bucket 0. Bidirectional: the same with N = buckets/2 on each
    side, and keys after the query take the upper half. T5 itself has scale 1 (no 1/sqrt(head_dim)): choose it with
    Attention's `scale`.

    heads         number of heads
    buckets       number of buckets; even when causal, divisible by 4 when bidirectional
    max_distance  the distance (positions) from which all share the last bucket; above half the buckets of one side
    causal        whether only the past is told apart
    std           standard deviation of the initial table (logits); the default 0 starts as no position at all

    Bucket edges are decided in exact integer arithmetic: libraries that take logarithms in float32 differ between
    devices at the edges. A fractional distance falls into the bucket that the formula gives it.

    Where it goes wrong: all distances past max_distance look alike, and when max_distance exceeds the trained length
    the buckets between are never trained and the bias looks like a bad extrapolator. Keep it within the trained length.

    Raises ValueError for buckets that do not divide, or a max_distance that leaves no room for the logarithmic buckets.
    Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1.

    >>> T5Bias(8).bucket(torch.tensor([0, 15, 16, 20, 64, 127, 128, -3])).tolist()
    [0, 15, 16, 17, 26, 31, 31, 0]
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \text{table}[\operatorname{bucket}(m_i - n_j), h]

    \operatorname{bucket}(d) = \begin{cases} 0 & d < 0 \\ d & 0 \le d < e \\ \min\left( N - 1, \; e + \left\lfloor
    \frac{\ln(d/e)}{\ln(\text{max distance}/e)} (N - e) \right\rfloor \right) & d \ge e \end{cases} \qquad e = N/2
    """
    source = "Raffel et al. 2019, arXiv:1910.10683, section 2.1"
    also_called = ("t5", "relative_bias")
    extrapolates = "Nothing is claimed. Found: perplexity holds to about twice the trained length, then it rises."
    used_by = "T5, mT5, Flan-T5, LongT5, UDOP, Pop2Piano"

    def __init__(
        self,
        heads: int,
        *,
        buckets: int = 32,
        max_distance: int = 128,
        causal: bool = True,
        std: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads)
        buckets, max_distance = int(buckets), int(max_distance)
        parts = 2 if causal else 4
        if buckets < parts or buckets % parts:
            kind = "causal" if causal else "bidirectional"
            raise ValueError(f"{kind} buckets must be divisible by {parts}, got {buckets}")
        exact = buckets // parts
        if max_distance <= exact:
            raise ValueError(
                f"max_distance must be above {exact}, where the logarithmic buckets begin, got {max_distance}; "
                f"use fewer buckets or a larger max_distance"
            )
        checks.at_least("std", std, 0)
        self.heads, self.buckets, self.max_distance, self.causal, self.std = heads, buckets, max_distance, causal, std
        self.table = nn.Parameter(torch.empty(buckets, heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    @property
    def edges(self) -> list[float]:
        """The distance (positions) at which each bucket of one side begins, without the first, which begins at 0."""
        side = self.buckets if self.causal else self.buckets // 2
        exact = side // 2
        logarithmic = []
        for step in range(1, side - exact):
            # d is past the edge when (d/exact)^(side-exact) >= (max_distance/exact)^step, in whole numbers.
            power = side - exact
            bound = self.max_distance**step * exact ** (power - step)
            edge = exact * (self.max_distance / exact) ** (step / power)
            whole = round(edge) + (round(edge) ** power < bound)
            logarithmic.append(float(min(max(edge, math.nextafter(whole - 1, math.inf)), whole)))
        return [float(d) for d in range(1, exact + 1)] + logarithmic

    def bucket(self, delta: Tensor) -> Tensor:
        """Return the bucket (0 to buckets - 1) of each signed distance, query minus key (positions)."""
        edges = number_tensor(self.edges, torch.float64, delta.device)
        distance = delta.clamp(min=0) if self.causal else delta.abs()
        bucket = torch.bucketize(distance.to(torch.float64), edges, right=True)
        return bucket if self.causal else bucket + (delta < 0) * (self.buckets // 2)

    def by_distance(self, delta: Tensor) -> Tensor:
        # Many distances share a bucket: their gradients would stop adding up in half precision.
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        return F.embedding(self.bucket(delta), table).movedim(-1, 0)

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        relative = n - m
        side = self.buckets if self.causal else self.buckets // 2
        first = side if relative > 0 and not self.causal else 0
        distance = max(-relative, 0) if self.causal else abs(relative)
        exact = side // 2
        bucket = int(distance)
        if distance >= exact:
            # 1e-12 keeps an edge that is a whole number on its own side of the floor.
            share = math.log(distance / exact) / math.log(self.max_distance / exact)
            bucket = min(exact + math.floor(share * (side - exact) + 1e-12), side - 1)
        return super().formula_logit(q, k, m, n, head, scale) + self.table[first + bucket, head].item()
