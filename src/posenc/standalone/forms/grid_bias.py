"""Relative position table of a window (Swin, BEiT): add to each logit a learned number for the distance on each axis.

Source: Liu et al. 2021, arXiv:2103.14030, section 3.2.
Where it goes wrong: another window needs a resampled table and fine-tuning. Rows count query - key up, the last axis
fastest. A table read the other way round gives no error. BEiT's three rows for a class token are left out.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import axis_distances, distances

WINDOW = (7, 7)  # tokens on each axis; distances beyond it read the row at its edge
STD = 0.02  # of the initial table (logits)
AXES = 2
FLEX = False
SEQ_DIM = 2


class RelativePositionBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(q, k, position_ids)); one for each layer.

    The ids of a window's tokens are torch.cartesian_prod(*map(torch.arange, WINDOW)), [seq_len, axes].
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        rows = math.prod(2 * size - 1 for size in WINDOW)
        self.table = nn.Parameter(STD * torch.randn(rows, num_heads))

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        if AXES == 1:
            distance = distances(q, k, position_ids, key_position_ids)[..., None]  # [1 or batch, 1, queries, keys, 1]
        else:
            distance = axis_distances(q, k, position_ids, key_position_ids)  # [1 or batch, 1, queries, keys, axes]
        row = torch.zeros_like(distance[..., 0])
        for axis, size in enumerate(WINDOW):
            row = row * (2 * size - 1) + distance[..., axis].clamp(1 - size, size - 1) + size - 1
        head = torch.arange(self.table.shape[1], device=row.device)[:, None, None]
        # Many distances share a number: their gradients would stop adding up in half precision.
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        return table[row, head].to(q.dtype)

    if FLEX and AXES == 1:

        def score_mod(self, offset: int = 0):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on."""
            table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
            farthest = WINDOW[0] - 1

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                row = (offset + q_idx - kv_idx).clamp(-farthest, farthest) + farthest
                return score + table[row, head].to(score.dtype)

            return add_bias


EXPECTED = ()

if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    grid = RelativePositionBias(num_heads=2)
    grid.table.data = 0.1 * torch.arange(grid.table.numel(), dtype=torch.float64).cos().view_as(grid.table)
    ids = torch.tensor([2, 7, 40])
    if AXES != 1:
        ids = torch.stack([ids // axis for axis in range(1, AXES + 1)], dim=-1)
    bias = grid(x, x, ids)
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
