"""Log-n temperature."""

import math

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding, Side
from posenc.encoding.precision import exact
from posenc.tokens.positions import Positions


class LogTemperature(Encoding):
    """Multiply each query by the logarithm of the number of tokens that it sees.

    q_p -> tau q_p,   tau = max(least, ln(p + 1) / ln(trained_length))

    A query at position p sees p + 1 tokens. Sharpened by their logarithm, its attention keeps about the same entropy.
    At the last trained position tau is 1.

    trained_length  the trained length (tokens), 2 or more
    least           the smallest temperature (unitless): 0 is plain log-n scaling, where the first query is multiplied
                    by 0 and early ones are flattened; 1 is ReRoPE's max(1, .), which leaves all of the trained length
                    as it was

    It carries no order: use it beside other encodings, as in rotary + log_temperature. Biases that read the query
    (Shaw) see it warmed. The count is read from the position: with documents, padding or a cache it is that of the
    sequence alone; positions below 0 count as 0. Tau is taken in float64 and multiplied in float32 at least.

    Where it goes wrong: without the floor a model that was trained plain loses its sharpness inside the trained
    length. A count of tokens fits causal attention; bidirectional attention sees as many from every position.

    Raises ValueError for a trained length below 2 or a negative least.
    Source: Su 2021, kexue.fm/archives/8823 (log-n); Su 2023, kexue.fm/archives/9708 (ReRoPE).

    >>> LogTemperature(trained_length=1024).temperature(1023)
    1.0
    """

    equation = r"""
    q_p \to \tau q_p, \quad \tau = \max\left( \text{least}, \frac{\ln(p + 1)}{\ln(\text{trained length})} \right)
    """
    source = "Su 2021, kexue.fm/archives/8823 (log-n); Su 2023, kexue.fm/archives/9708 (ReRoPE)"
    also_called = ("log_n", "logn", "log_scaling")
    extrapolates = "It keeps the entropy of attention in range, and gives no position by itself."
    turns = "queries"

    def __init__(self, trained_length: int, *, least: float = 0.0) -> None:
        super().__init__()
        checks.at_least("trained_length", trained_length, 2, ", since the logarithm of 1 is 0")
        checks.at_least("least", least, 0)
        self.trained_length, self.least = trained_length, least

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        if side == "key":
            return x
        dtype = torch.promote_types(x.dtype, torch.float32)
        return (x * self.once(self.table, at, dtype, x.device)).to(x.dtype)

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the temperature of each query, [B or 1, 1, T, 1], computed in float64."""
        count = exact(at.axis(self)).clamp(min=0) + 1
        temperature = (count.log() / math.log(self.trained_length)).clamp(min=self.least)
        return temperature[:, None, :, None].to(dtype).to(device)

    def temperature(self, position: float) -> float:
        """Return tau of a query at `position`, in scalars as published."""
        return max(self.least, math.log(max(position, 0) + 1) / math.log(self.trained_length))

    def formula_query(self, q, position, head=0) -> list[float]:
        return [self.temperature(position) * a for a in q]
