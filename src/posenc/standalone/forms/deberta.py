"""DeBERTa's disentangled attention: compare queries with relative positions, and relative positions with keys.

Source: He et al. 2020, arXiv:2006.03654, section 3.2; logarithmic buckets: DeBERTa-v2's code, arXiv:2111.09543.
Where it goes wrong: attention has to divide q . k by sqrt(3 head_dim) too (2 for one term), not by sqrt(head_dim). For
keys the released code reads the row of d(i, j), the paper that of d(j, i), and weights fit one of them. Versions 2 and
3 put the table through a LayerNorm first. Distances past the last bucket are all alike.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import distances

BUCKETS = 256  # rows of the table on each side
MAX_DISTANCE = 512  # positions; the logarithmic buckets end there
TERMS = "both"
MIRROR = True
STD = 0.02  # of the initial weights
SEQ_DIM = 2


class DisentangledBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(q, k) + mask, scale=(3 * head_dim)**-0.5)."""

    def __init__(self, d_model: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.table = nn.Parameter(STD * torch.randn(2 * BUCKETS, d_model))  # P
        if TERMS != "position_to_content":
            self.to_key = nn.Linear(d_model, num_heads * head_dim, bias=False)
            nn.init.normal_(self.to_key.weight, std=STD)
        if TERMS != "content_to_position":
            self.to_query = nn.Linear(d_model, num_heads * head_dim)
            nn.init.normal_(self.to_query.weight, std=STD)
            nn.init.zeros_(self.to_query.bias)

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [batch, heads, T, S]. A mask to add is float: 0 where allowed, else -inf."""
        distance = distances(q, k, position_ids, key_position_ids)
        dtype = torch.promote_types(q.dtype, torch.float32)
        table = self.table.to(dtype)
        if SEQ_DIM == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)  # [batch, heads, seq_len, head_dim]
        pairs = (*q.shape[:3], k.shape[2])  # [batch, heads, T, S]
        if TERMS != "position_to_content":
            keys = nn.functional.linear(table, self.to_key.weight.to(dtype)).unflatten(-1, (self.num_heads, -1))
            logits = torch.einsum("bhtd,rhd->bhtr", q.to(dtype), keys)
            content_to_position = logits.gather(-1, rows(distance).expand(pairs))
        if TERMS != "content_to_position":
            queries = nn.functional.linear(table, self.to_query.weight.to(dtype), self.to_query.bias.to(dtype))
            queries = queries.unflatten(-1, (self.num_heads, -1))
            k = k.to(dtype).repeat_interleave(self.num_heads // k.shape[1], 1)  # query heads may share keys
            logits = torch.einsum("bhsd,rhd->bhsr", k, queries)
            if MIRROR:
                key_rows = rows(-distance)
            else:
                key_rows = rows(distance)
            position_to_content = logits.gather(-1, key_rows.expand(pairs).mT).mT
        if TERMS == "both":
            bias = (content_to_position + position_to_content) * (3 * q.shape[-1]) ** -0.5
        elif TERMS == "content_to_position":
            bias = content_to_position * (2 * q.shape[-1]) ** -0.5
        else:
            bias = position_to_content * (2 * q.shape[-1]) ** -0.5
        return bias.to(q.dtype)


def rows(distance: Tensor) -> Tensor:
    """Return the row of the table for each distance (positions)."""
    if MAX_DISTANCE is not None:
        half = BUCKETS // 2  # distances up to half have a row each
        size = distance.abs().to("cpu" if distance.device.type == "mps" else distance.device, torch.float64)
        share = (size / half).log() / math.log((MAX_DISTANCE - 1) / half)
        far = half + (share * (half - 1) - 1e-9).ceil()  # an edge belongs to the bucket that it ends
        distance = torch.where(size > half, far, size).long().to(distance.device) * distance.sign()
    return distance.clamp(-BUCKETS, BUCKETS - 1) + BUCKETS


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    deberta = DisentangledBias(d_model=16, num_heads=2, head_dim=8).double()
    for weight in deberta.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    bias = deberta(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[0, :, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
