"""Sandwich."""

import math

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.precision import exact, has_float64
from posenc.encodings.rotations import plain_frequencies
from posenc.tokens.shared_tables import number_tensor


class Sandwich(Encoding):
    """Add to each logit a fixed sum of cosines of the distance.

    logit(i, j) = scale * q_i . k_j + H / (8 h) sum_p cos((m_i - n_j) base^(-2p/width)),  p = 0..width/2-1

    for heads h = 1..H. The sum is the inner product of the sinusoidal embeddings of both positions; it falls about
    as a logarithm of the distance. Nothing is learned.

    heads  number of heads
    width  width of the sinusoidal embedding (channels; even); 128 in the paper, whatever the model's width
    base   the sinusoids' base: their wavelengths run from 2 pi to 2 pi base (positions)

    The paper's equation counts p from 1 to width/2, its code from 0, and this is the code; some add -width/2 to the
    sum, which the softmax does not see. Cosines are taken in float64, as angles of a million positions need.

    Where it goes wrong: the strongest head, h = 1, gets a bias of up to width H/16, so a model of many heads begins
    with heads that look at their own token only. Like its cosines the sum is not quite monotone.

    Raises ValueError for an odd width or a base that is not above 1.
    Source: Chi, Fan, Rudnicky, Ramadge 2022, arXiv:2212.10356, section 5.

    >>> Sandwich(8).bias(2)[0, :2, 0, 0]
    tensor([64., 32.])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \frac{H}{8 h} \sum_{p=0}^{\text{width}/2 - 1}
    \cos\left( (m_i - n_j) \, \text{base}^{-2p/\text{width}} \right)
    """
    source = "Chi, Fan, Rudnicky, Ramadge 2022, arXiv:2212.10356, section 5"
    extrapolates = "Claimed: perplexity stays flat or falls beyond the trained length, as KERPLE's; not verified here."

    def __init__(self, heads: int, *, width: int = 128, base: float = 10_000.0) -> None:
        super().__init__()
        checks.sizes(heads=heads)
        checks.even("width", width)
        checks.above("base", base, 1)
        self.heads, self.width, self.base = heads, width, base

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each cosine (positions, float64, shortest first)."""
        return 2 * math.pi / plain_frequencies(self.base, self.width)

    def by_distance(self, delta: Tensor) -> Tensor:
        distance = exact(delta)
        total = torch.zeros_like(distance)
        # As many cosines at a time as heads: a table of all cosines would be larger than the bias.
        for frequencies in plain_frequencies(self.base, self.width, distance.device).split(self.heads):
            total = total + (distance * frequencies.view(-1, *(1,) * distance.dim())).cos().sum(0)
        share = [self.heads / (8 * h) for h in range(1, self.heads + 1)]
        bias = number_tensor(share, torch.float64, total.device).view(-1, *(1,) * delta.dim()) * total
        return bias if has_float64(delta.device) else bias.float().to(delta.device)

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        terms = (math.cos((m - n) / self.base ** (2 * p / self.width)) for p in range(self.width // 2))
        compression = 8 * (head + 1) / self.heads
        return super().formula_logit(q, k, m, n, head, scale) + math.fsum(terms) / compression
