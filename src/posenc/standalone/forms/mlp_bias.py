"""Dynamic position bias: add to each logit a small network's output for the signed distance.

Source: Wang et al. 2021, CrossFormer, arXiv:2108.00154, section 3.2.2; without layer norms, as in x_transformers.
Where it goes wrong: past the trained length the network is linear in the distance, and the bias grows without bound.
Distances as inputs in bfloat16 are wrong from 257 on. The hidden layers of all pairs of tokens are in memory.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import axis_distances, distances

WIDTH = 32  # neurons of each hidden layer; a quarter of d_model in the paper
DEPTH = 2  # hidden layers
LOG = False
AXES = 1  # coordinates of a position
FLEX = False
SEQ_DIM = 2


class DynamicPositionBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dpb(q, k)); one for each layer."""

    def __init__(self, num_heads: int, max_seq_len: int = 4096) -> None:
        super().__init__()
        sizes = [AXES, *[WIDTH] * DEPTH, num_heads]
        self.layers = nn.ModuleList(nn.Linear(sizes[n], sizes[n + 1]) for n in range(DEPTH + 1))
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
        x = distance.to(torch.promote_types(next(self.parameters()).dtype, torch.float32))
        if LOG:
            x = x.sign() * x.abs().log1p()
        with torch.autocast(x.device.type, enabled=False):
            for n, layer in enumerate(self.layers):
                weight, bias = (parameter.to(x.dtype) for parameter in layer.parameters())
                x = nn.functional.linear(nn.functional.silu(x) if n else x, weight, bias)
        return x

    if FLEX and AXES == 1:

        def score_mod(self, offset: int = 0):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on."""
            farthest = self.max_seq_len - 1
            distance = torch.arange(-farthest, farthest + 1, device=next(self.parameters()).device)
            table = self.network(distance[:, None])  # [distances, heads]

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                return score + table[offset + q_idx - kv_idx + farthest, head].to(score.dtype)

            return add_bias


EXPECTED = ()

if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    mlp = DynamicPositionBias(num_heads=2).double()
    for weight in mlp.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    ids = torch.tensor([2, 7, 40])
    if AXES != 1:
        ids = torch.stack([ids // axis for axis in range(1, AXES + 1)], dim=-1)
    bias = mlp(x, x, ids)
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
