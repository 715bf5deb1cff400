"""Mixed rotary (RoPE) encoding: rotary along learned directions."""

import math

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.channel_pairs import LAYOUTS
from posenc.encoding.precision import exact
from posenc.encodings.rotations import Turning, cos_sin
from posenc.kernels.rotation.rotate_pairs import rotate_both, rotate_pairs, rotation_dtype
from posenc.tokens.positions import Positions


class MixedRotary(Turning):
    """Turn each pair of channels along a direction of its own, learned for each head: also along diagonals.

    angle of pair p in head h at coordinates x = sum_a x_a f_h,p,a   (f: radians per unit of the coordinate, learned)
    Initially f_h,p = base^(-A k/P) u_h,i with p = i ceil(P/A) + k: for each head A perpendicular directions u_h,1..A at
    random, and along each the same magnitudes. For A = 2 axes and P = head_dim/2 pairs these are base^(-4k/head_dim).

    head_dim  width of one head (channels); an odd last channel carries no position
    heads     number of query heads
    axes      number A of coordinates of a position
    base      ratio that sets the smallest initial magnitude (unitless, above 1); 10 in the paper, since learning finds
              the scale
    groups    how many sets of frequencies there are; neighbouring heads share one. The default is one for each query
              head, as published. Query heads that share a key head have to turn as it does: with grouped-query
              attention give the number of key heads
    layout    which channels form a pair: "half" pairs p with p + P, "interleaved" (RoPE-ViT, timm) 2p with 2p + 1

    Every layer has frequencies of its own, head_dim/2 times A for each set. Which coordinate comes first is the
    caller's choice: Positions.grid(H, W) gives (row, column), timm's "ij"; RoPE-ViT's own weights read (column, row).
    Weight decay pulls frequencies towards no
    position: the authors exclude them. Angles are taken in float64, whatever the dtype of the parameter; in bfloat16
    the frequencies themselves are rounded.

    Where it goes wrong: frequencies are learned in steps of a patch, so in much larger images slow pairs reach angles
    that training never saw. With one axis it is rotary with learned frequencies, with the same limit.

    Raises ValueError for a head without a pair, groups that do not divide the heads, or keys of fewer heads than there
    are groups.
    Source: Heo, Park, Han, Yun 2024, arXiv:2403.13298, section 3.2 (RoPE-Mixed).

    >>> MixedRotary(3, 8).frequencies.shape
    torch.Size([3, 4, 2])
    """

    equation = r"\text{angle}_{h,p}(x) = \sum_a x_a f_{h,p,a}"
    source = "Heo, Park, Han, Yun 2024, arXiv:2403.13298, section 3.2"
    also_called = ("rope_mixed", "mixed_rope")
    extrapolates = (
        "claimed to larger images: DeiT-III-B trained at 224 pixels scores 83.8 there and 84.4 at 384, axial rotary "
        "83.6 and 83.9"
    )
    per_layer = True

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        axes: int = 2,
        base: float = 10.0,
        groups: int | None = None,
        layout: str = "half",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.one_of("layout", layout, LAYOUTS)
        if not head_dim >= 2:
            raise ValueError(f"head_dim must hold a pair of channels, got {head_dim}")
        checks.sizes(heads=heads, axes=axes)
        checks.above("base", base, 1)
        if groups is not None and (not groups >= 1 or heads % groups):
            raise ValueError(f"groups must divide heads={heads}, got {groups}; give the number of key heads")
        self.head_dim, self.heads, self.axes, self.base = head_dim, heads, axes, base
        self.groups, self.layout = groups, layout
        sets = heads if groups is None else groups
        self.frequencies = nn.Parameter(torch.empty(sets, head_dim // 2, axes, device=device, dtype=dtype))
        self.reset_parameters()
        if sets > 1:
            reason = "heads that share a key head have to turn as it does; give groups=1, or the number of key heads"
            # Of the instance, since one set of frequencies has no gap.
            self.gaps = {"grouped_query_heads_agree": reason, "a_cache_changes_nothing": reason}

    def reset_parameters(self) -> None:
        sets, pairs, axes = self.frequencies.shape
        pairs_per_axis = math.ceil(pairs / axes)
        pair = torch.arange(pairs, device="cpu")
        magnitude = self.base ** -(axes * (pair % pairs_per_axis).double() / pairs)
        # A random rotation for each set: its columns are the perpendicular directions.
        q, r = torch.linalg.qr(torch.randn(sets, axes, axes, dtype=torch.float64, device="cpu"))
        directions = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
        directions[:, :, -1] *= torch.linalg.det(directions)[:, None]
        with torch.no_grad():
            self.frequencies.copy_(magnitude[:, None] * directions.mT[:, pair // pairs_per_axis])

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        cos, sin = self.table(x, at).unbind(0)
        return rotate_pairs(x, cos, sin, self.layout)

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        if at is not keys_at or q.shape[1] != k.shape[1] or q.dtype != k.dtype:
            return super().turn_both(q, k, at, keys_at)
        checks.head_dim(self, k)
        return rotate_both(q, k, self.table(q, at), self.layout)

    def table(self, x: Tensor, at: Positions) -> Tensor:
        """Return cosines and sines [2, B or 1, H, T, P] at these positions. They fit x [B, H, T, head_dim]."""
        checks.head_dim(self, x)
        sets = self.frequencies.shape[0]
        if x.shape[1] % sets or x.shape[1] > self.heads:
            raise ValueError(
                f"{self} has frequencies for {sets} sets of heads among {self.heads}, got {x.shape[1]} heads; "
                f"where fewer key heads serve the queries, build it with groups={x.shape[1]}"
            )
        coords, frequencies = exact(at.coordinates(self.axes, self).view_as(at.coords)), exact(self.frequencies)
        # Products and a sum of a few axes: autocast would take a matrix product in half precision.
        products = [coords[:, None, :, axis, None] * frequencies[:, None, :, axis] for axis in range(self.axes)]
        table = cos_sin(sum(products[1:], products[0]), 1.0, rotation_dtype(x), x.device)
        return table if sets in (1, x.shape[1]) else table.repeat_interleave(x.shape[1] // sets, 2)

    def formula_angles(self, position, head=0, horizon=None) -> list[float]:
        places = (position,) if self.axes == 1 else position
        frequencies = self.frequencies[head * self.frequencies.shape[0] // self.heads].tolist()
        return [math.fsum(f * place for f, place in zip(frequency, places, strict=True)) for frequency in frequencies]
