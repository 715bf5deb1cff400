"""The relative position table of a window."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.interpolation import interpolate_on_axes


class GridBias(Encoding):
    """Add to each logit a learned number for its head and the distance on each axis.

    logit(i, j) = scale * q_i . k_j + table[r(m_i - n_j), h],  r(d) = d_a + W_a - 1 on each axis a, the last fastest

    The table has a row for each of the prod_a (2 W_a - 1) distances inside the window. Every layer has its own.

    heads   number of heads
    window  size of the window on each axis (positions); its length is the number of axes
    std     standard deviation of the initial table (logits); 0 starts as no position at all, as BEiT does

    A distance beyond the window reads the row at its edge, and a fractional one mixes the rows around it linearly.
    `resampled` gives the encoding of another window. BEiT's three further rows for a class token are left out: a class
    token has no position.

    Where it goes wrong: each row is learned by itself, so what was never seen in training stays as it began, and
    beyond the window all distances look alike. Resampling needs fine-tuning.

    Raises ValueError for a window that is no tuple of whole numbers from 1, or a negative std.
    Source: Liu et al. 2021, arXiv:2103.14030, section 3.2.

    >>> GridBias(4, window=(7, 7)).table.shape
    torch.Size([169, 4])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \text{table}[r(m_i - n_j), h]

    r(d)_a = d_a + W_a - 1
    """
    source = "Liu et al. 2021, arXiv:2103.14030, section 3.2"
    also_called = ("relative_position_table", "window_bias", "swin")
    extrapolates = "Not claimed: it is resampled for a larger window and fine-tuned."
    used_by = "Swin, BEiT"
    per_layer = True

    def __init__(
        self,
        heads: int,
        *,
        window: tuple[int, ...] = (7, 7),
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads)
        if not window or not all(isinstance(n, int) and n >= 1 for n in window):
            raise ValueError(f"window must be a tuple of sizes from 1, as in (7, 7), got {window!r}")
        checks.at_least("std", std, 0)
        self.heads, self.window, self.std, self.axes = heads, tuple(window), std, len(window)
        self.table = nn.Parameter(torch.empty(math.prod(2 * n - 1 for n in window), heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def row(self, cell: Tensor) -> Tensor:
        """Return the row for a cell [..., A], counted from the most negative distance. It is clamped at the edge."""
        row = torch.zeros_like(cell[..., 0])
        for axis, n in enumerate(self.window):
            row = row * (2 * n - 1) + cell[..., axis].clamp(max=2 * n - 2)
        return row

    def by_distance(self, delta: Tensor) -> Tensor:
        delta = delta if self.axes != 1 else delta[..., None]
        place = torch.stack(
            [d.clamp(1 - n, n - 1) + (n - 1) for d, n in zip(delta.unbind(-1), self.window, strict=True)], -1
        )
        # Many distances share a row: their gradients would stop adding up in half precision.
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        dtype = torch.promote_types(table.dtype, delta.dtype)
        return interpolate_on_axes(lambda cell: F.embedding(self.row(cell), table), place, dtype).movedim(-1, 0)

    def resampled(self, *window: int) -> "GridBias":
        """Return the encoding of another window, with a table interpolated linearly from this one.

        Raises ValueError for another number of axes.

        >>> GridBias(4, window=(7, 7)).resampled(12, 12).table.shape
        torch.Size([529, 4])
        """
        if len(window) != self.axes:
            raise ValueError(f"window must have {self.axes} sizes as the old one {self.window}, got {window}")
        twin = GridBias(self.heads, window=window, std=self.std, device=self.table.device, dtype=self.table.dtype)
        # Both tables cover the same square, with each row in the middle of its cell.
        axes = [
            torch.arange(1 - n, n, dtype=torch.float64, device=self.table.device) * ((2 * old - 1) / (2 * n - 1))
            for old, n in zip(self.window, window, strict=True)
        ]
        delta = torch.cartesian_prod(*axes)
        with torch.no_grad():
            twin.table.copy_(self.by_distance(delta).T)
        return twin

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        query_coords, key_coords = (m, n) if isinstance(m, tuple) else ((m,), (n,))
        corners = [(0, 1.0)]
        for a, b, size in zip(query_coords, key_coords, self.window, strict=True):
            place = min(max(a - b, 1 - size), size - 1) + size - 1
            low = math.floor(place)
            sides = [(low, 1 - (place - low)), (min(low + 1, 2 * size - 2), place - low)]
            corners = [(row * (2 * size - 1) + at, w * share) for row, w in corners for at, share in sides]
        bias = math.fsum(weight * self.table[row, head].item() for row, weight in corners)
        return super().formula_logit(q, k, m, n, head, scale) + bias
