"""Contextual position encoding (CoPE): a query counts only the tokens that it selects, and the count is the position.

Source: Golovneva et al. 2024, arXiv:2405.18719, sections 4 and 5; code in facebookresearch/RAM, projects/cope.
Where it goes wrong: the gate is sigmoid(q . k / sqrt(head_dim)), per query and key. One gate per token is FoX. The sum
runs from the query back to the key, both included. Gates without a causal mask count the future. As published, logits
of the table are scaled by 1/sqrt(head_dim) too; x-transformers leaves them unscaled. A clipped rotary encoding of 2026
is called CoPE too.
"""

import torch
from torch import Tensor, nn

POSITIONS = 64  # number of vectors, for counts 0, 1, 2, ...
DIVIDED = True
SEQ_DIM = 2


class CoPE(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(q, k) + causal_mask)."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(POSITIONS, head_dim))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the bias [batch, heads, T, S]; queries are the last T of the S keys.

        A mask to add is float: 0 where allowed, else -inf.
        """
        if SEQ_DIM == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)  # [batch, heads, seq_len, head_dim]
        dtype, scale = torch.promote_types(q.dtype, torch.float32), q.shape[-1] ** -0.5
        with torch.autocast(q.device.type, enabled=False):  # counts need more than half precision
            queries = scale * q.to(dtype)
            keys = k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], 1)  # query heads may share keys
            causal = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
            causal = causal.tril(k.shape[2] - q.shape[2])
            gates = (queries @ keys.mT).sigmoid().masked_fill(~causal, 0.0)  # [batch, heads, T, S]
            # The sum begins at the query, so that short ones are exact. Larger counts use the last vector.
            position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=POSITIONS - 1)
            if DIVIDED:
                logits = queries @ self.table.to(dtype).T  # [batch, heads, T, POSITIONS]
            else:
                logits = q.to(dtype) @ self.table.to(dtype).T  # [batch, heads, T, POSITIONS]
            floor, ceil = (logits.gather(-1, row.long()) for row in (position.floor(), position.ceil()))
            return floor.lerp(ceil, position.frac()).to(q.dtype)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    cope = CoPE(head_dim=8).double()
    cope.table.data = 0.1 * torch.arange(cope.table.numel(), dtype=torch.float64).cos().view_as(cope.table)
    bias = cope(x, x)
    torch.testing.assert_close(bias[0, :, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
