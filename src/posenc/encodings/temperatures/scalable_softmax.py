"""Scalable softmax (SSMax)."""

import math

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding, Side
from posenc.encoding.precision import exact
from posenc.tokens.positions import Positions


class ScalableSoftmax(Encoding):
    """Let each head learn how much its attention sharpens with the number of tokens it sees.

    q_p -> tau q_p,   tau = s_h ln(p + 1) + b_h

    The softmax over n = p + 1 tokens then has the base n^s in place of e, so one large logit keeps its weight however
    many small ones come: it has to exceed them by 1/s.

    heads     number of query heads
    start     initial s of all heads (unitless); 0.43 in the paper's figures
    constant  whether each head also learns the constant b, from 0; it trained as well and extrapolated worse

    Every layer has its own s. It carries no order: use it beside other encodings. The count is read from the position:
    with documents, padding or a cache it is that of the sequence alone; positions below 0 count as 0. The logarithm is
    taken in float64, and the query multiplied in float32 at least.

    Where it goes wrong: a query at position 0 is multiplied by b alone. With one token to see that changes nothing, but
    bidirectional attention sees more from there, and its count is another.

    Raises ValueError for fewer than one head, a start that is not finite, and queries of another number of heads.
    Source: Nakanishi 2025, arXiv:2501.19399, section 2.

    >>> ScalableSoftmax(4).strength.shape
    torch.Size([4])
    """

    equation = r"q_p \to \tau q_p, \quad \tau = s_h \ln(p + 1) + b_h"
    source = "Nakanishi 2025, arXiv:2501.19399, section 2"
    also_called = ("ssmax", "scalable_soft_max")
    extrapolates = "Claimed: a needle is still found far past the trained length; it gives no position by itself."
    turns = "queries"
    per_layer = True

    def __init__(
        self,
        heads: int,
        *,
        start: float = 0.43,
        constant: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads)
        checks.number("start", start)
        self.heads, self.start, self.constant = heads, start, constant
        self.strength = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.offset = nn.Parameter(torch.empty(heads, device=device, dtype=dtype)) if constant else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.strength, self.start)
        if self.offset is not None:
            nn.init.zeros_(self.offset)

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        if side == "key":
            return x
        checks.heads(self, x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        count = self.logarithms(at, dtype, x.device)
        temperature = self.strength.to(dtype)[:, None, None] * count  # [B or 1, H, T, 1]
        if self.offset is not None:
            temperature = temperature + self.offset.to(dtype)[:, None, None]
        return (x * temperature).to(x.dtype)

    def logarithms(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the logarithm of each query's number of tokens, [B or 1, 1, T, 1]. It is computed in float64."""
        return exact(at.axis(self)).clamp(min=0).log1p()[:, None, :, None].to(dtype).to(device)

    def formula_query(self, q, position, head=0) -> list[float]:
        b = 0.0 if self.offset is None else self.offset[head].item()
        factor = self.strength[head].item() * math.log(max(position, 0) + 1) + b
        return [factor * a for a in q]
