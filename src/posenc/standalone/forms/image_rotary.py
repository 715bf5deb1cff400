"""Image rotary (RoPE of DINOv3): axial rotary over coordinates from -1 to 1, for images of any size.

Source: Siméoni et al. 2025, arXiv:2508.10104, and the authors' code, RopePositionEmbedding.
Where it goes wrong: coordinates counted in patches (0, 1, 2) turn the fastest pair by whole turns. An image of another
size changes the distance between neighbours, which is what the authors' shifts and stretches in training are for. The
released checkpoints hold periods that were rounded to bfloat16.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate_first

AXES = 2  # such as row and column
BASE = 100.0  # the slowest pair turns once in nearly BASE units of a coordinate
SEQ_DIM = 2


class ImageRotaryEmbedding(nn.Module):
    """q, k = ImageRotaryEmbedding(head_dim)(q, k, position_ids), for q, k [batch, heads, seq_len, head_dim].

    position_ids [seq_len, axes] or [batch, seq_len, axes] are the centres of the patches: (2 i + 1) / n - 1 on an axis
    of n patches, i = 0..n-1. A token without a place, such as CLS, stands at 0.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.pairs = head_dim // (2 * AXES)  # of each axis; channels left over do not rotate

    def forward(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-2]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if q.device.type == "mps" else q.device  # mps has no float64
        periods = BASE ** (torch.arange(self.pairs, dtype=torch.float64, device=device) / self.pairs)
        angles = 2 * math.pi * position_ids.to(device).double()[..., None] / periods  # [.., seq_len, axes, pairs]
        angles = angles.flatten(-2)
        if SEQ_DIM == 2:
            angles = angles.unsqueeze(-3)  # the same for all heads of q and k [batch, heads, seq_len, head_dim]
        else:
            angles = angles.unsqueeze(-2)  # the same for all heads of q and k [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), angles.sin()
        return rotate_first(q, cos, sin), rotate_first(k, cos, sin)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    position_ids = torch.arange(3 * AXES, dtype=torch.float64).sin().view(3, AXES)
    q, k = ImageRotaryEmbedding(x.shape[-1])(x, x, position_ids)
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
