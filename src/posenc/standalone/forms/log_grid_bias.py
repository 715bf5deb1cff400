"""Log-spaced continuous position bias (Swin-V2): add a small network's output for the logarithm of the distance.

Source: Liu et al. 2021, arXiv:2111.09883, section 3.3.
Where it goes wrong: WINDOW is that of the weights, and stays when the picture grows (Swin-V2's pretrained_window_size).
The bias lies between 0 and 16. It belongs to cosine attention, whose logit scale is at most 100.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import axis_distances, distances

WINDOW = 8  # tokens on each axis of the window that was trained
AXES = 2  # coordinates of a position
WIDTH = 512  # neurons
FLEX = False
SEQ_DIM = 2


class ContinuousPositionBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(q, k, position_ids)); one for each layer."""

    def __init__(self, num_heads: int, max_seq_len: int = 4096) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(AXES, WIDTH), nn.Linear(WIDTH, num_heads, bias=False)
        if FLEX and AXES == 1:
            self.max_seq_len = max_seq_len  # the most keys of score_mod

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        if AXES == 1:
            distance = distances(q, k, position_ids, key_position_ids)[..., None]  # [1 or batch, 1, queries, keys, 1]
        else:
            distance = axis_distances(q, k, position_ids, key_position_ids)  # [1 or batch, 1, queries, keys, axes]
        bias = self.network(distance)  # [1 or batch, 1, queries, keys, heads]
        return bias.transpose(-4, -1).squeeze(-1).to(q.dtype)

    def network(self, distance: Tensor) -> Tensor:
        """Return the bias [.., heads] of distances [.., axes], in float32 or wider."""
        x = distance.to(torch.promote_types(self.out.weight.dtype, torch.float32)) * (8 / (WINDOW - 1))
        x = x.sign() * x.abs().log1p() / math.log(8)  # log2(1 + |x|) / log2(8)
        with torch.autocast(x.device.type, enabled=False):
            x = nn.functional.linear(x, self.hidden.weight.to(x.dtype), self.hidden.bias.to(x.dtype)).relu()
            return 16 * nn.functional.linear(x, self.out.weight.to(x.dtype)).sigmoid()

    if FLEX and AXES == 1:

        def score_mod(self, offset: int = 0):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on."""
            farthest = self.max_seq_len - 1
            distance = torch.arange(-farthest, farthest + 1, device=self.out.weight.device)
            table = self.network(distance[:, None])  # [distances, heads]

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                return score + table[offset + q_idx - kv_idx + farthest, head].to(score.dtype)

            return add_bias


EXPECTED = ()

if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    cpb = ContinuousPositionBias(num_heads=2).double()
    for weight in cpb.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    ids = torch.tensor([2, 7, 40])
    if AXES != 1:
        ids = torch.stack([ids // axis for axis in range(1, AXES + 1)], dim=-1)
    bias = cpb(x, x, ids)
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
