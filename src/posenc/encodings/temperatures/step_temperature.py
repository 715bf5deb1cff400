"""The temperatures of Llama 4, Ministral 3 and Inkling."""

import math

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding, Side
from posenc.encoding.precision import exact
from posenc.tokens.positions import Positions

FORMS = ("llama4", "ministral", "inkling")


class StepTemperature(Encoding):
    """Leave queries as they are for a long first stretch, then sharpen their attention slowly with the position.

    q_p -> tau q_p,   tau = 1 + strength * ln(g)
    llama4      g = 1 + floor((p + 1) / interval)      steps, the first at p = interval - 1
    ministral   g = 1 + floor(p / interval)            steps, the first at p = interval
    inkling     g = max(1, (p + 1) / interval)         no steps: continuous from p = interval - 1 on

    interval  length of the first stretch (positions); Llama 4 8192, Inkling-2 128,000, and Ministral 3 the length that
              its rotary scaling starts from
    strength  growth of the temperature with the logarithm (unitless); 0.1 in all three
    form      which of the three: llama4, ministral or inkling. They agree nowhere past the first stretch

    It carries no order: use it beside other encodings. Llama 4 uses it in its layers without rotary only, Ministral in
    all, Inkling in its global layers, where it multiplies the bias too (here: biases that read the query see it
    warmed). Position is the coordinate: padding on the left or a cache does not move the steps; positions below 0 count
    as 0. Tau is taken in float64 and multiplied in float32 at least.

    Where it goes wrong: within the first stretch it does nothing, so a short test cannot tell whether it is right, or
    which of the three it is. Transformers' Llama 4 counts padding as positions.

    Raises ValueError for an interval below 1, a strength that is not a finite number of 0 or more, or an unknown form.
    Source: Meta 2025, Llama 4 model code (after arXiv:2501.19399); Mistral AI 2025, Ministral 3 model code; Inkling
    2026, model code; all in transformers 5.23.

    >>> [round(StepTemperature(interval=8192).temperature(p), 6) for p in (8190, 8191, 8192, 24575)]
    [1.0, 1.069315, 1.069315, 1.138629]
    """

    equation = r"""
    q_p \to \tau q_p, \quad \tau = 1 + \text{strength} \ln\, g

    g = \begin{cases} 1 + \lfloor (p + 1) / \text{interval} \rfloor & \text{llama4} \\ 1 + \lfloor p / \text{interval}
    \rfloor & \text{ministral} \\ \max(1, (p + 1) / \text{interval}) & \text{inkling} \end{cases}
    """
    source = (
        "Meta 2025, Llama 4 model code (after arXiv:2501.19399); Mistral AI 2025, Ministral 3 model code; "
        "Inkling 2026, model code; all in transformers 5.23"
    )
    also_called = ("llama4_temperature", "ministral_temperature", "inkling_temperature", "attention_temperature")
    extrapolates = "It keeps attention sharp over long contexts, and gives no position by itself."
    turns = "queries"
    used_by = "Llama 4 (layers without rotary), Ministral 3, Mistral Small 4, Inkling (global layers)"

    def __init__(self, *, interval: int = 8192, strength: float = 0.1, form: str = "llama4") -> None:
        super().__init__()
        checks.one_of("form", form, FORMS)
        checks.at_least("interval", interval, 1)
        checks.at_least("strength", strength, 0)
        self.interval, self.strength, self.form = interval, strength, form

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        if side == "key":
            return x
        dtype = torch.promote_types(x.dtype, torch.float32)
        return (x * self.once(self.table, at, dtype, x.device)).to(x.dtype)

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the temperature of each query, [B or 1, 1, T, 1], computed in float64."""
        p = exact(at.axis(self)).clamp(min=0)
        stretches = (p if self.form == "ministral" else p + 1) / self.interval
        growth = stretches.clamp(min=1) if self.form == "inkling" else 1 + stretches.floor()
        return (1 + self.strength * growth.log())[:, None, :, None].to(dtype).to(device)

    def temperature(self, position: float) -> float:
        """Return tau of a query at `position`, in scalars as published."""
        p = max(position, 0)
        if self.form == "llama4":
            return 1 + self.strength * math.log1p(math.floor((p + 1) / self.interval))
        if self.form == "ministral":
            return 1 + self.strength * math.log(1 + math.floor(p / self.interval))
        return 1 + self.strength * max(0.0, math.log((p + 1) / self.interval))

    def formula_query(self, q, position, head=0) -> list[float]:
        return [self.temperature(position) * a for a in q]
