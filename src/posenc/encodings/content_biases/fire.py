"""FIRE."""

import functools
import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, ByDistance, Pairs, distances_between
from posenc.encoding.formulas import dot_product
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, at_token, look_up, table_entry, table_mod
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import may_be_read


class Fire(Encoding):
    """Add to each logit a small network's output for the distance, normalised by the query's position.

    logit(i, j) = scale * q_i . k_j + f_h(psi(|m_i - n_j|) / (psi(max(L, m_i)) + eps)),  psi(x) = ln(|c| x + 1)

    f is a network 1 - width - ReLU - heads, and L = |multiplier| length. The query's own position enters through the
    maximum: this is not a function of the distance alone. c, the multiplier and f are learned.

    heads   number of heads
    width   neurons of the network
    rate    where c starts (1/position)
    length  where L starts (positions): 512 in the paper; take the trained length
    eps     keeps the quotient finite
    shared  whether all layers share one (FIRE-S); else every layer has its own

    A network of one input is piecewise linear: its `width` bends cut the line into width + 1 pieces, each with a slope
    and an offset for each head. Those are looked up, so that memory does not grow with the width; the result is the
    network's. The paper is causal; here keys after the query count by |m - n| too. If all queries stand before L, the
    bias is one of the distance alone, and as fast as these.

    Where it goes wrong: an L far above the trained length makes the quotient a plain logarithm of the distance, and the
    interpolation never sets in. The bias added for one pair changes as the query moves on.

    Raises ValueError for a width below 1 and for a rate, length or eps that is not above 0.
    Source: Li et al. 2023, arXiv:2310.04418, section 3 and appendix.

    >>> Fire(2, length=16.0)
    fire(length=16.0)
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + f_h\left( \frac{\psi(|m_i - n_j|)}{\psi(\max(L, m_i))
    + \text{eps}} \right)

    \psi(x) = \ln(|c| \, x + 1)
    """
    source = "Li et al. 2023, arXiv:2310.04418, section 3"
    also_called = ("functional_interpolation",)
    extrapolates = "Claimed: best of the biases at four times the length. Found: best of them on copying, to twice."
    per_layer = True
    between = ()

    def __init__(
        self,
        heads: int,
        *,
        width: int = 32,
        rate: float = 0.1,
        length: float = 512.0,
        eps: float = 1e-6,
        shared: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads, width=width)
        checks.above("rate", rate, 0), checks.above("length", length, 0), checks.above("eps", eps, 0)
        self.heads, self.width, self.rate, self.length, self.eps = heads, width, rate, length, eps
        self.shared, self.per_layer = shared, not shared
        self.c = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.multiplier = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.hidden = nn.Linear(1, width, device=device, dtype=dtype)
        self.out = nn.Linear(width, heads, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.c, self.rate)
        nn.init.ones_(self.multiplier)
        self.hidden.reset_parameters()
        self.out.reset_parameters()

    def pieces(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return the network as linear pieces: its bends [width], ascending, and slopes and offsets [H, width + 1]."""
        weight, bias = self.hidden.weight[:, 0].to(dtype), self.hidden.bias.to(dtype)
        bends, order = (-bias / weight).detach().sort()
        rank, piece = order.argsort(), torch.arange(self.width + 1, device=bends.device)[:, None]
        # A neuron is on right of its bend when its weight is positive, left of it when negative.
        active = torch.where(weight > 0, piece > rank, piece <= rank)
        active = torch.where(weight == 0, bias > 0, active)  # [width + 1, width]
        out_weights = self.out.weight.to(dtype)[:, None] * active  # [H, width + 1, width]
        return bends, (out_weights * weight).sum(-1), (out_weights * bias).sum(-1) + self.out.bias.to(dtype)[:, None]

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        checks.heads(self, q)
        if self.all_within_length(at):
            return [ByDistance(self, at, keys.at, q.shape[1], function="within_length")]
        return [Pieces(self.score_mod, q, at, keys, reads_between=False)]

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        m, n = at.axis(self), keys.at.axis(self)
        dtype = self.dtype_for(m, n)
        bends, slope, offset = self.pieces(dtype)
        denominator = self.denominator(m, dtype)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            share = self.logarithm((at_token(m, b, i) - at_token(n, b, j)).to(dtype)) / at_token(denominator, b, i)
            piece = torch.bucketize(share.detach(), bends)
            bias = look_up(slope, h, piece) * share + look_up(offset, h, piece)
            return score + bias.to(score.dtype)

        return score_mod

    def all_within_length(self, at: Positions) -> bool:
        """Whether all queries are known to stand before L; False if the answer would wait for a GPU."""
        if at.extent is None or not self.multiplier.is_cpu or not may_be_read(self.multiplier):
            return False
        return at.extent <= self.threshold(torch.float64).item()

    def within_length(self, delta: Tensor) -> Tensor:
        """Return the bias [H, ...] at distances [...] of queries before L, which share one denominator."""
        dtype = self.dtype_for(delta)
        bends, slope, offset = self.pieces(dtype)
        share = self.logarithm(delta.to(dtype)) / (self.logarithm(self.threshold(dtype)) + self.eps)
        piece = torch.bucketize(share.detach(), bends).flatten()
        bias = slope.index_select(1, piece) * share.flatten() + offset.index_select(1, piece)
        return bias.view(self.heads, *delta.shape)

    def denominator(self, m: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the quotient's denominator for queries at m [B or 1, T]."""
        return self.logarithm(torch.maximum(self.threshold(dtype), m.to(dtype))) + self.eps

    def threshold(self, dtype: torch.dtype) -> Tensor:
        """Return L [1]."""
        return (self.multiplier.to(dtype) * self.length).abs()

    def logarithm(self, x: Tensor) -> Tensor:
        """Return psi(|x|) = ln(|c x| + 1)."""
        return torch.log1p((self.c[0].to(x.dtype) * x).abs())

    def dtype_for(self, *coords: Tensor) -> torch.dtype:
        """Return the dtype to compute in: float32 or wider, and at least that of fractional coordinates."""
        fractions = (x.dtype for x in coords if x.is_floating_point())
        return functools.reduce(torch.promote_types, fractions, torch.promote_types(self.c.dtype, torch.float32))

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        c, L = abs(self.c.item()), abs(self.multiplier.item()) * self.length
        share = math.log(c * abs(m - n) + 1) / (math.log(c * max(L, m) + 1) + self.eps)
        layer = zip(self.hidden.weight[:, 0].tolist(), self.hidden.bias.tolist(), strict=True)
        bias = dot_product([max(weight * share + bias, 0.0) for weight, bias in layer], self.out.weight[head].tolist())
        return super().formula_logit(q, k, m, n, head, scale) + bias + self.out.bias[head].item()


class Pieces(Pairs):
    """The network's bias. A fused kernel looks up the logarithm of a distance, and the linear pieces of a query."""

    def fused_closure(self, dtype: torch.dtype) -> ScoreMod:
        distances, fire = distances_between(self.at, self.keys.at), cast(Any, self.score_mod).__self__
        if distances is None:
            return table_mod(self.dense(dtype))
        lowest, highest = distances
        bends, slope, offset = fire.pieces(dtype)
        denominator = fire.denominator(self.at.axis(fire), dtype)
        # One table for all queries would sum the gradients of all pairs at a few addresses, which is slow.
        slope = slope[:, None, None] / denominator[..., None]  # [H, B or 1, T, width + 1]
        offset, denominator = offset[:, None, None].expand_as(slope), denominator.detach()
        logarithms = fire.logarithm(torch.arange(lowest, highest + 1, device=self.q.device).to(dtype))
        m, n = self.at.axis(fire) - lowest, self.keys.at.axis(fire)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            x = logarithms[at_token(m, b, i) - at_token(n, b, j)]
            share, piece = x / at_token(denominator, b, i), torch.zeros_like(i)
            # Bisection takes fewer steps, but the compiler repeats each step for every use of the previous one.
            for bend in range(fire.width):
                piece = piece + (share > bends[torch.zeros_like(i) + bend])
            bias = table_entry(slope, h, b, i, piece) * x + table_entry(offset, h, b, i, piece)
            return score + bias.to(score.dtype)

        return self.on_model_heads(score_mod)
