"""TUPE: add to each logit how well two positions go together, from a table with projections of its own.

Source: Ke, He, Liu 2020, arXiv:2006.15595, sections 3.1 to 3.3. bias = (U_Q p_m) . (U_K p_n) / sqrt(2 head_dim)
Where it goes wrong: attention has to divide q . k by sqrt(2 head_dim) too, as published. There is no position past the
table. All layers share it. The paper frees [CLS] from positions, which takes the first position from a causal model.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.query_and_key_ids import query_and_key_ids

UNTIE_FIRST = True
STD = 0.02  # of the initial projections; the table starts with 1
SEQ_DIM = 2


class TUPEBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(q, k) + mask, scale=(2 * head_dim)**-0.5)."""

    def __init__(self, d_model: int, num_heads: int, head_dim: int, max_seq_len: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.table = nn.Parameter(torch.randn(max_seq_len, d_model))
        self.to_query = nn.Linear(d_model, num_heads * head_dim, bias=False)
        self.to_key = nn.Linear(d_model, num_heads * head_dim, bias=False)
        nn.init.normal_(self.to_query.weight, std=STD)
        nn.init.normal_(self.to_key.weight, std=STD)
        if UNTIE_FIRST:
            self.first_key = nn.Parameter(torch.zeros(num_heads))

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        ids, key_ids = query_and_key_ids(q, k, position_ids, key_position_ids)
        queries, keys = self.project(ids, self.to_query), self.project(key_ids, self.to_key)
        bias = queries @ keys.mT * (2 * q.shape[-1]) ** -0.5  # [.., heads, T, S]
        if UNTIE_FIRST:
            # Position 0 is [CLS], which stands for the whole text: as a key it has one bias, as a query none.
            first_key = self.first_key.to(bias.dtype)[:, None, None]
            bias = torch.where((key_ids == 0)[..., None, None, :], first_key, bias)
            bias = bias.masked_fill((ids == 0)[..., None, :, None], 0.0)
        return bias.to(q.dtype)

    def project(self, position_ids: Tensor, linear: nn.Linear) -> Tensor:
        """Return the projected vectors of positions, [.., heads, seq_len, head_dim]."""
        dtype = torch.promote_types(self.table.dtype, torch.float32)
        p = nn.functional.embedding(position_ids, self.table).to(dtype)
        return nn.functional.linear(p, linear.weight.to(dtype)).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    tupe = TUPEBias(d_model=16, num_heads=2, head_dim=8, max_seq_len=64).double()
    for weight in tupe.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    bias = tupe(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
