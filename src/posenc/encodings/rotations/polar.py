"""PoPE: polar coordinate position embedding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding, Side
from posenc.encoding.precision import exact
from posenc.encodings.rotations import Waves, cos_sin, displacement
from posenc.kernels.rotation.rotate_pairs import rotate_pairs, rotation_dtype
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once

PHASES = ("zero", "uniform", "none")


class Polar(Waves, Encoding):
    """Let content decide only the length of each channel's arrow, and position alone its direction.

    logit(i, j) = scale sum_c softplus(q_ic) softplus(k_jc) cos((m_i - n_j) frequency_c - delta_c)
    frequency_c = base^(-c/d), c = 0..d-1     (radians per position)

    Every channel has a frequency of its own, twice as many as rotary; queries and keys come out twice as wide (cosine
    and sine parts), values as they were. delta [heads, d] is learned, and held between -2 pi and 0.

    heads     number of query heads
    head_dim  width of one head, d (channels)
    base      ratio that sets the longest wavelength (unitless, above 1)
    phases    how delta begins: "zero" (which the paper finds important for longer sequences), "uniform" over its range
              (slightly better within the trained length), or "none" for no delta at all

    What differs: the paper turns keys by +delta; here the query is turned by -delta, which is the same logit, and stays
    right where several query heads share a key head. Every layer has its own delta (x-transformers shares one). `scale`
    is Attention's, d^-1/2 of the head as projected, not of the doubled width.

    Where it goes wrong: the lengths are never negative, so without delta all products at distance 0 add up. For random
    queries and keys of 64 channels the mean logit is 5.2 there and falls with distance: unlike rotary it begins with a
    strong preference for near tokens. A delta that a step carries out of its range gets no more gradient and stays.
    The cache holds keys twice as wide. Its large gains are on tasks of pure indexing (94.8 against 11.2 %); in
    language modelling perplexity falls by 1 % (21.55 to 21.33 at 124 M parameters).

    Raises ValueError for sizes below 1, a base of 1 or less, an unknown word for phases, or heads that do not fit.
    Source: Gopalakrishnan, Csordas, Schmidhuber, Mozer 2025, arXiv:2509.10534, section 3.

    >>> q, k = Polar(heads=1, head_dim=4)(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4))
    >>> q.shape
    torch.Size([1, 1, 3, 8])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale} \sum_c \operatorname{softplus}(q_{ic}) \operatorname{softplus}(k_{jc})
    \cos((m_i - n_j)\,\text{frequency}_c - \delta_c)

    \text{frequency}_c = \text{base}^{-c/d}, \quad c = 0, \dots, d - 1
    """
    source = "Gopalakrishnan, Csordas, Schmidhuber, Mozer 2025, arXiv:2509.10534, section 3"
    also_called = ("polar_coordinate", "polar_position_embedding")
    extrapolates = "Claimed steady perplexity to ten times the trained length (1,024 to 10,240 tokens), beyond YaRN."

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        base: float = 10_000.0,
        phases: str = "zero",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads, head_dim=head_dim)
        checks.above("base", base, 1)
        checks.one_of("phases", phases, PHASES)
        self.heads, self.head_dim, self.base, self.phases = heads, head_dim, base, phases
        self.per_layer = phases != "none"
        self.delta = nn.Parameter(torch.empty(heads, head_dim, device=device, dtype=dtype)) if self.per_layer else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.delta is not None and self.phases == "zero":
            nn.init.zeros_(self.delta)
        elif self.delta is not None:
            nn.init.uniform_(self.delta, -2 * math.pi, 0.0)

    def frequencies_on(self, device: torch.device | str) -> Tensor:
        """Return the frequency of each channel (radians per position), float64, fastest first."""
        return self.base ** -(torch.arange(self.head_dim, dtype=torch.float64, device=device) / self.head_dim)

    def directions(self, x: Tensor, at: Positions) -> Tensor:
        """Return cosines and sines [2, B or 1, 1, T, d] of the directions of tokens."""
        checks.head_dim(self, x)
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        key = type(self), self.head_dim, self.base, dtype, x.device
        return once(at, key, lambda: self.table(at, dtype, x.device))

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.axis(self))
        return cos_sin(coords[:, None, :, None] * self.frequencies_on(coords.device), 1.0, dtype, device)

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        cos, sin = self.directions(x, at)
        if side == "query" and self.delta is not None:
            checks.heads(self, x)
            delta = self.delta.to(cos.dtype).clamp(-2 * math.pi, 0.0)[:, None]  # [H, 1, d]
            cos, sin = cos * delta.cos() + sin * delta.sin(), sin * delta.cos() - cos * delta.sin()
        return arrows(x, cos, sin)

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        angle = exact(displacement(old_at, new_at).axis(self))[:, None, :, None] * self.frequencies_on(k.device)
        cos, sin = cos_sin(angle, 1.0, rotation_dtype(k), k.device)
        return rotate_pairs(k, cos, sin, "half")

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        total = []
        for c in range(self.head_dim):
            delta = 0.0 if self.delta is None else min(max(self.delta[head, c].item(), -2 * math.pi), 0.0)
            lengths = math.log1p(math.exp(q[c])) * math.log1p(math.exp(k[c]))
            total.append(lengths * math.cos((n - m) * self.base ** (-c / self.head_dim) + delta))
        return scale * math.fsum(total)


def arrows(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return vectors of length softplus(x) in these directions, [..., 2 d] in x's dtype: cosine parts, then sines."""
    length = F.softplus(x.to(cos.dtype))
    return torch.cat((length * cos, length * sin), -1).to(x.dtype)
