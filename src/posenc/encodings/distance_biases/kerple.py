"""KERPLE."""

import math

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding

KINDS = ("log", "power")
FORMS = ("released", "paper")

LOWEST = 0.01
"""The smallest value of r1 and r2, as in the released code."""


class Kerple(Encoding):
    """Subtract from each logit a learned, slowly growing function of the distance: a logarithm or a power.

    log:    logit(i, j) = scale * q_i . k_j - r1_h ln(1 + r2_h |m_i - n_j|)
    power:  logit(i, j) = scale * q_i . k_j - r1_h |m_i - n_j|^r2_h,  r2_h at most 2

    Both are conditionally positive definite kernels: plus a constant, an inner product of feature vectors. Every layer
    has its own r1 and r2, one of each for each head. They start uniform: r1 in (0, 2) and r2 in (0, 1) for log, r1 in
    (0, 1) and r2 in (0, 2) for power.

    heads     number of heads
    kind      log or power
    form      released: the bias is added after the scaling, as in the authors' code
              paper: it is divided by sqrt(head_dim) too, as in equation 1
    head_dim  width of one head (channels); only the paper form reads it

    The values are held at 0.01 or more. There the gradient passes as if they were free, so that they can come back; the
    released code moves the parameters themselves, which a forward pass may not. Keys after the query count by
    |m - n|; the paper is causal.

    Where it goes wrong: it decays and never rises, so no head can look at a chosen far distance. Too large an r1 early
    in training shuts a head's distant keys out before it can learn to use them.

    Raises ValueError for an unknown kind or form, and for the paper form without head_dim.
    Source: Chi, Fan, Ramadge, Rudnicky 2022, arXiv:2205.09921, equations 1, 3 and 4.

    >>> Kerple(2).bias(3).shape
    torch.Size([1, 2, 3, 3])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j - r_{1,h} \ln(1 + r_{2,h} |m_i - n_j|) \quad
    \text{(log)}

    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j - r_{1,h} |m_i - n_j|^{r_{2,h}} \quad \text{(power)}
    """
    source = "Chi, Fan, Ramadge, Rudnicky 2022, arXiv:2205.09921, section 4"
    also_called = ("kerple_log", "kerple_power")
    extrapolates = "Claimed and found: perplexity stays flat or falls to 32 times the trained length (log)."
    per_layer = True
    gaps = {  # noqa: RUF012
        "gradients_are_those_of_small_steps": "below 0.01 a number is held there and its gradient passes all the same, "
        "so that it can come back"
    }

    def __init__(
        self,
        heads: int,
        *,
        kind: str = "log",
        form: str = "released",
        head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads, head_dim=head_dim)
        checks.one_of("kind", kind, KINDS)
        checks.one_of("form", form, FORMS)
        if form == "paper" and head_dim is None:
            raise ValueError("form 'paper' divides the bias by sqrt(head_dim); give head_dim")
        self.heads, self.kind, self.form, self.head_dim = heads, kind, form, head_dim
        self.r1 = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.r2 = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.r1, 0.0, 2.0 if self.kind == "log" else 1.0)
        nn.init.uniform_(self.r2, 0.0, 1.0 if self.kind == "log" else 2.0)

    def by_distance(self, delta: Tensor) -> Tensor:
        dtype = torch.promote_types(self.r1.dtype, torch.float32)
        dtype = torch.promote_types(dtype, delta.dtype) if delta.is_floating_point() else dtype
        distance = delta.abs().to(dtype)
        r1, r2 = clamp_r(self.r1.to(dtype)), clamp_r(self.r2.to(dtype), math.inf if self.kind == "log" else 2.0)
        r1, r2 = (r.view(-1, *(1,) * delta.dim()) for r in (r1, r2))
        bias = -r1 * torch.log1p(r2 * distance) if self.kind == "log" else -r1 * distance**r2
        return bias * (self.head_dim or 1) ** -0.5 if self.form == "paper" else bias

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        r1, r2 = (max(r[head].item(), 0.01) for r in (self.r1, self.r2))
        distance = abs(m - n)
        bias = -r1 * math.log(1 + r2 * distance) if self.kind == "log" else -r1 * distance ** min(r2, 2.0)
        divisor = math.sqrt(self.head_dim or 1) if self.form == "paper" else 1.0
        return super().formula_logit(q, k, m, n, head, scale) + bias / divisor


def clamp_r(r: Tensor, highest: float = math.inf) -> Tensor:
    """Return r clamped to its bounds, with the gradient of r itself."""
    return r.detach().clamp(LOWEST, highest) + (r - r.detach())
