"""Learned absolute encoding."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.interpolation import adopt_table, interpolate
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import assert_on_gpu, may_be_read

OVERRUN = ("error", "clamp", "interpolate")


class Learned(Encoding):
    """Add to each token a trained vector, one for each position.

    x_p + table[p],  table [max_len, dim], initialised N(0, std^2)

    dim      width of the embeddings (channels)
    max_len  rows of the table (positions)
    overrun  what happens past the table: "error" raises; "clamp" uses the last row; "interpolate" squeezes every
             sequence whose declared horizon L exceeds max_len into the table, p -> p (max_len - 1)/(L - 1), and reads
             between rows. It comes from Positions.with_horizon, never from a tensor's size, so that a cache or a
             neighbour in the batch cannot change a result
    std      standard deviation of the initial table (in units of the embeddings)

    Shapes: x [B, T, dim] -> [B, T, dim]. Positions may be fractional: the two neighbouring rows are mixed linearly.
    Errors are raised from Python with the position, the table's size and the remedy, before any device could assert.
    That costs nothing for positions that are counted or padded by Positions; ids given as a tensor are looked at.
    Inside a compiled graph, where data cannot be looked at, rows out of reach come out as NaN.

    Where it goes wrong: it cannot speak of positions past its table, and rows that training never visited are noise.
    In range it ties with sinusoidal (25.7 against 25.8 BLEU in the original comparison).

    Raises ValueError for sizes below 1, an unknown policy, embeddings of another width, positions out of the table
    under "error", negative positions, and a missing horizon under "interpolate".
    Source: Gehring et al. 2017, arXiv:1705.03122, section 3.1; Vaswani et al. 2017, arXiv:1706.03762, table 3 row E.

    >>> Learned(4, max_len=2)(torch.zeros(1, 3, 4))
    Traceback (most recent call last):
    ...
    ValueError: position 2 is past the learned table of 2 rows; build it with max_len=3 or more, or ...
    """

    equation = r"x_p \to x_p + \text{table}[p]"
    source = "Gehring et al. 2017, arXiv:1705.03122, section 3.1"
    also_called = ("ape", "absolute", "trainable", "embedding")
    extrapolates = "not claimed: past its table there is no row, and rows that training never visited are noise"
    used_by = "BERT, GPT-2, GPT-3, OPT, ViT"

    def __init__(
        self,
        dim: int,
        max_len: int,
        *,
        overrun: str = "error",
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, max_len=max_len)
        checks.one_of("overrun", overrun, OVERRUN)
        checks.above("std", std, 0)
        self.dim, self.max_len, self.overrun, self.std = dim, max_len, overrun, std
        self.table = nn.Parameter(torch.empty(max_len, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def _load_from_state_dict(self, state_dict, prefix, *args: Any) -> None:  # ty: ignore[incompatible-method-override]
        adopt_table(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        checks.dim(self, x)
        return x + self.vectors(at).to(x.dtype)

    def vectors(self, at: Positions) -> Tensor:
        """Return the vectors [B or 1, T, dim] of tokens. Consecutive positions get a slice [T, dim] of the table."""
        start, end = at.start, at.extent
        if start is not None and end is not None and end <= self.max_len and self.overrun != "interpolate":
            return self.table[start:end]
        return self.read(self.row(at))

    def row(self, at: Positions) -> Tensor:
        """Return the table row of each token, [B or 1, T], by the overrun policy. Rows may be fractional."""
        coords = at.axis(self)
        last = self.max_len - 1
        if self.overrun == "interpolate":
            if at.horizon is None:
                if at.extent is not None and at.extent <= self.max_len:
                    return coords
                raise ValueError(
                    f"{self} squeezes by the declared horizon of each sequence, and none is declared; "
                    f"give positions.with_horizon(L)"
                )
            squeeze = last / (at.horizon.to(torch.float64) - 1).clamp(min=max(last, 1))  # [B or 1]
            coords = coords * squeeze[:, None]
        if self.overrun == "clamp":
            coords = coords.clamp(max=last)
        # A known extent needs no look at the data: it also means that no coordinate is below 0.
        if (
            self.overrun != "interpolate"
            and at.extent is not None
            and (self.overrun == "clamp" or at.extent <= self.max_len)
        ):
            return coords
        return self.valid_rows(coords, at)

    def valid_rows(self, coords: Tensor, at: Positions) -> Tensor:
        """Return the coordinates. Raises ValueError if one is outside the table."""
        last = self.max_len - 1
        if not may_be_read(coords):
            # Squeezing may round the last position up by a unit in the last place.
            invalid = (coords > last + 1e-6) | (coords < 0)
            return torch.where(invalid, torch.nan, coords.to(torch.float64))
        words = f"a position is out of the {self.max_len} rows of {self}"
        if assert_on_gpu(coords, lambda: (coords >= 0) & (coords <= last + 1e-6), words):
            return coords
        lowest, highest = torch.stack(coords.aminmax()).tolist()
        if highest > last + 1e-6:
            needed_rows = math.ceil(highest) + 1
            remedy = f"build it with max_len={needed_rows} or more, or choose overrun='clamp' or overrun='interpolate'"
            if self.overrun == "interpolate":
                remedy = f"the declared horizon is too short for it: declare at least {int(at.coords.max().item()) + 1}"
            raise ValueError(f"position {highest:.12g} is past the learned table of {self.max_len} rows; {remedy}")
        if lowest < 0:
            raise ValueError(f"a learned table starts at position 0, got position {lowest:.12g}; shift the positions")
        return coords

    def read(self, row: Tensor) -> Tensor:
        """Return the vectors [..., dim] at whole or fractional rows; NaN rows give NaN."""
        last = self.max_len - 1
        return interpolate(lambda whole: F.embedding(whole, self.table), row.clamp(0, last), last)

    def formula_added(self, position: float, channel: int) -> float:
        if self.overrun == "interpolate":
            raise NotImplementedError(
                f"{self} reads the declared horizon of each sequence, which a formula of one position lacks"
            )
        if self.overrun == "clamp":
            position = min(position, self.max_len - 1)
        low, high, share = math.floor(position), math.ceil(position), position % 1
        return (1 - share) * self.table[low, channel].item() + share * self.table[high, channel].item()
