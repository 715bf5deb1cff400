"""T5's relative position bias: add to each logit a learned number for its head and its bucket of distances.

Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1; buckets as in the released code (mesh_tensorflow).
Where it goes wrong: T5 does not divide logits by sqrt(head_dim): its weights need scale=1.0. All its layers share the
table of the first, `relative_attention_bias.weight` in Hugging Face. In float32, distances on a bucket's edge fall into
other buckets on other devices. Buckets past the trained length are never trained.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import distances

BUCKETS = 32
MAX_DISTANCE = 128  # positions; all distances from here on share the last bucket
CAUSAL = True
STD = 0.0  # of the initial table (logits)
FLEX = False
SEQ_DIM = 2


class T5RelativeBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=t5_bias(q, k) + mask, scale=1.0)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        if STD > 0:
            self.table = nn.Parameter(STD * torch.randn(BUCKETS, num_heads))
        else:
            self.table = nn.Parameter(torch.zeros(BUCKETS, num_heads))
        all_distances = range(-MAX_DISTANCE, MAX_DISTANCE + 1)  # query position - key position
        if CAUSAL:
            # As in the decoder: all keys ahead share bucket 0. `posenc eject t5_bias --bidirectional` is the encoder's.
            self.buckets = [bucket(max(distance, 0), BUCKETS) for distance in all_distances]
        else:
            half = BUCKETS // 2  # keys after the query have the upper half
            self.buckets = [bucket(abs(distance), half) + half * (distance < 0) for distance in all_distances]

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        distance = distances(q, k, position_ids, key_position_ids)  # [1 or batch, 1, queries, keys]
        buckets = torch.tensor(self.buckets, device=distance.device)
        row = buckets[distance.clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE]
        head = torch.arange(self.table.shape[1], device=distance.device)[:, None, None]
        # Many distances share a number: their gradients would stop adding up in half precision.
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        return table[row, head].to(q.dtype)

    if FLEX:

        def score_mod(self, offset: int = 0):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on."""
            table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
            bias = table[torch.tensor(self.buckets, device=table.device)]  # of each distance, [distances, heads]

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                row = (offset + q_idx - kv_idx).clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
                return score + bias[row, head].to(score.dtype)

            return add_bias


def bucket(distance: int, buckets: int) -> int:
    """Return the bucket of a distance from 0 on."""
    exact = buckets // 2  # so many distances have a bucket of their own
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(MAX_DISTANCE / exact)
    return min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)  # 1e-9: an edge belongs to the next bucket


EXPECTED = ()

if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    t5 = T5RelativeBias(num_heads=2)
    t5.table.data = 0.1 * torch.arange(t5.table.numel(), dtype=torch.float64).cos().view_as(t5.table)
    bias = t5(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
