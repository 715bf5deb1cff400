"""Axial rotary (RoPE on a grid): each axis rotates its own share of a head's channels by its coordinate.

Source: Heo et al. 2024, arXiv:2403.13298, section 3.2 (RoPE-Axial); Agrawal et al. 2024, arXiv:2410.07073 (Pixtral).
Where it goes wrong: trained weights want their own order of the coordinates (timm reads row, column; RoPE-ViT column,
row) and their own pairs of channels, and go wrong without an error. A token without a place, such as CLS, stands at 0
on every axis. A base made for text wastes pairs on a grid: of 16 pairs, 5 turn by a radian in 14 cells at 10,000, and
10 at 100.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate, rotate_first

AXES = 2  # such as row and column
BASE = 100.0  # the slowest pair of an axis turns once in nearly 2 pi BASE cells
SPLIT = None  # channels of each axis
FREQUENCIES = "language"
RESOLUTION = 0.0  # cells that the fastest pair tells apart, for coordinates from -1 to 1
LAYOUT = "half"
SEQ_DIM = 2


class AxialRotaryEmbedding(nn.Module):
    """q, k = AxialRotaryEmbedding(head_dim)(q, k, position_ids), for q, k [batch, heads, seq_len, head_dim].

    position_ids [seq_len, axes] or [batch, seq_len, axes] are the coordinates of each token, such as row and column.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        if SPLIT is not None:
            self.widths = SPLIT
        else:
            self.widths = (head_dim // (2 * AXES) * 2,) * AXES  # channels of each axis; those left over do not rotate

    def forward(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-2]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if q.device.type == "mps" else q.device  # mps has no float64
        parts = []
        for axis, width in enumerate(self.widths):
            if FREQUENCIES == "language":
                freqs = BASE ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
            elif FREQUENCIES == "dealt":  # one spectrum, whose frequencies go to the axes in turn
                channels = torch.arange(2 * axis, AXES * width, 2 * AXES, dtype=torch.float64, device=device)
                freqs = BASE ** -(channels / (AXES * width))
            else:
                highest = RESOLUTION / 2 if RESOLUTION else 224 / 2  # two cells to a turn, fastest pair
                if FREQUENCIES == "pixel":
                    freqs = math.pi * torch.linspace(1, highest, width // 2, dtype=torch.float64, device=device)
                else:
                    share = torch.linspace(0, 1, width // 2, dtype=torch.float64, device=device)
                    freqs = math.pi * highest**share
            parts.append(position_ids.to(device)[..., axis, None] * freqs)
        angles = torch.cat(parts, dim=-1)  # [.., seq_len, pairs]
        if SEQ_DIM == 2:
            angles = angles.unsqueeze(-3)  # the same for all heads of q and k [batch, heads, seq_len, head_dim]
        else:
            angles = angles.unsqueeze(-2)  # the same for all heads of q and k [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), angles.sin()
        if LAYOUT == "half_by_axis":
            return rotate_axes(q, cos, sin, self.widths), rotate_axes(k, cos, sin, self.widths)
        else:
            return rotate_first(q, cos, sin), rotate_first(k, cos, sin)


def rotate_axes(x: Tensor, cos: Tensor, sin: Tensor, widths: tuple[int, ...]) -> Tensor:
    """Return x with the channels of each axis rotated by themselves; those left over pass."""
    pairs = [width // 2 for width in widths]
    *parts, rest = x.split([*widths, x.shape[-1] - sum(widths)], dim=-1)
    return torch.cat([*map(rotate, parts, cos.split(pairs, dim=-1), sin.split(pairs, dim=-1)), rest], dim=-1)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    position_ids = torch.arange(3 * AXES, dtype=torch.float64).sin().view(3, AXES)
    q, k = AxialRotaryEmbedding(x.shape[-1])(x, x, position_ids)
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
