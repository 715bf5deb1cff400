"""Mixed rotary (RoPE-Mixed): each pair of channels rotates along a learned direction of its own, also diagonals.

Source: Heo et al. 2024, arXiv:2403.13298, section 3.2 (RoPE-Mixed).
Where it goes wrong: weight decay pulls the frequencies towards no position at all, so leave them out of it. Trained
weights want their own order of the coordinates (timm reads row, column; RoPE-ViT column, row). Query heads that share a
key head have to rotate as it does.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate_first

AXES = 2  # such as row and column
BASE = 10.0  # sets the slowest frequency before training, about BASE^-2 on two axes
GROUPS = None  # sets of frequencies, each for neighbouring heads
SEQ_DIM = 2


class MixedRotaryEmbedding(nn.Module):
    """q, k = MixedRotaryEmbedding(...)(q, k, position_ids), for q, k [batch, heads, seq_len, head_dim].

    position_ids [seq_len, axes] or [batch, seq_len, axes] are the coordinates of each token, such as row and column.
    """

    def __init__(self, head_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        sets = num_heads if GROUPS is None else GROUPS
        # In each set, perpendicular directions at random, in columns: rotations, uniform over all.
        q, r = torch.linalg.qr(torch.randn(sets, AXES, AXES, dtype=torch.float64))
        directions = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
        directions[:, :, -1] *= directions.det()[:, None]
        # The pairs share the directions out, and along each the frequencies fall alike.
        pair, per_direction = torch.arange(head_dim // 2), math.ceil(head_dim // 2 / AXES)
        size = BASE ** -(AXES * (pair % per_direction).double() / len(pair))
        freqs = size[:, None] * directions.mT[:, pair // per_direction]  # [sets, pairs, axes]
        self.frequencies = nn.Parameter(freqs.to(torch.get_default_dtype()))

    def forward(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-2]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if q.device.type == "mps" else q.device  # mps has no float64
        freqs = self.frequencies.to(device).double()  # radians per unit of a coordinate
        angles = (position_ids.to(device)[..., None, None, :] * freqs).sum(-1)  # [.., seq_len, sets, pairs]
        if SEQ_DIM == 2:
            angles = angles.transpose(-2, -3)  # q and k are [batch, heads, seq_len, head_dim]
        cos, sin = angles.cos(), angles.sin()
        if GROUPS is None or GROUPS == 1:
            return rotate_first(q, cos, sin), rotate_first(k, cos, sin)
        else:
            return rotate_groups(q, cos, sin), rotate_groups(k, cos, sin)


def rotate_groups(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with neighbouring heads rotated alike, as many as share a set of frequencies."""
    dim = -3 if SEQ_DIM == 2 else -2
    heads = x.shape[dim] // cos.shape[dim]
    return rotate_first(x, cos.repeat_interleave(heads, dim), sin.repeat_interleave(heads, dim))


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    mixed = MixedRotaryEmbedding(x.shape[-1], num_heads=2)
    weight = mixed.frequencies
    weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    position_ids = torch.arange(3 * AXES, dtype=torch.float64).sin().view(3, AXES)
    q, k = mixed(x, x, position_ids)
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
