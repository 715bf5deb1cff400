"""Transformer-XL's relative encoding: compare each query with a projected sinusoid of its distance from the key.

Source: Dai et al. 2019, arXiv:1901.02860, section 3.3. bias = (u . k_j + (q_i + v) . W R(m_i - n_j)) / sqrt(head_dim)
Where it goes wrong: R has all sines first (Transformer-XL, XLNet) or each sine before its cosine (Conformers).
Weights for the other are silently wrong. The usual shift by padding and reshaping is right only for positions that
count up by 1. It is relative, and yet an unseen distance is a new sinusoid.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.query_and_key_ids import query_and_key_ids

BASE = 10_000.0  # wavelengths are 2 pi to about 2 pi BASE positions
MAX_DISTANCE = None  # positions; further distances look like it
LAYOUT = "concatenated"
STD = 0.02  # of the initial parameters
SEQ_DIM = 2


class TransformerXLBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(q, k) + mask); one for each layer."""

    def __init__(self, d_model: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.content_bias = nn.Parameter(STD * torch.randn(num_heads, head_dim))  # u
        self.distance_bias = nn.Parameter(STD * torch.randn(num_heads, head_dim))  # v
        self.weight = nn.Parameter(STD * torch.randn(num_heads * head_dim, d_model))  # W

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [batch, heads, T, S]. A mask to add is float: 0 where allowed, else -inf."""
        ids, key_ids = query_and_key_ids(q, k, position_ids, key_position_ids)
        if SEQ_DIM == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)  # [batch, heads, seq_len, head_dim]
        (num_heads, head_dim), d_model = self.content_bias.shape, self.weight.shape[1]
        device = "cpu" if q.device.type == "mps" else q.device  # angles need float64, which mps has not
        dtype = torch.promote_types(q.dtype, torch.float32)
        freqs = BASE ** -(torch.arange(0, d_model, 2, dtype=torch.float64, device=device) / d_model)
        m, n = (x.to(device)[..., None, :, None] * freqs for x in (ids, key_ids))
        sin_m, cos_m, sin_n, cos_n = (x.to(q.device, dtype) for x in (m.sin(), m.cos(), n.sin(), n.cos()))
        weight = nn.functional.pad(self.weight.to(dtype), (0, d_model % 2))  # an odd width lacks the last cosine
        weight = weight.unflatten(0, (num_heads, head_dim))
        if LAYOUT == "interleaved":
            sin_weight, cos_weight = weight[..., 0::2], weight[..., 1::2]
        else:
            sin_weight, cos_weight = weight.chunk(2, dim=-1)
        query = q.to(dtype) + self.distance_bias.to(dtype)[:, None]
        # (q + v) . W R(m - n) = a . sin(m - n) + b . cos(m - n), where sin(m - n) = sin m cos n - cos m sin n
        a, b = query @ sin_weight, query @ cos_weight  # [batch, heads, T, waves]
        bias = (a * sin_m + b * cos_m) @ cos_n.mT + (b * sin_m - a * cos_m) @ sin_n.mT  # [batch, heads, T, S]
        if MAX_DISTANCE is not None:
            even = (b @ (MAX_DISTANCE * freqs).cos().to(q.device, dtype))[..., None]
            odd = (a @ (MAX_DISTANCE * freqs).sin().to(q.device, dtype))[..., None]
            distance = (ids[..., None] - key_ids[..., None, :]).unsqueeze(-3)
            bias = torch.where(distance > MAX_DISTANCE, even + odd, bias)
            bias = torch.where(distance < -MAX_DISTANCE, even - odd, bias)
        keys = k.to(dtype).repeat_interleave(num_heads // k.shape[1], 1)  # query heads may share keys
        bias = bias + (keys @ self.content_bias.to(dtype)[..., None]).mT
        return (bias * head_dim**-0.5).to(q.dtype)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    transformer_xl = TransformerXLBias(d_model=16, num_heads=2, head_dim=8).double()
    for weight in transformer_xl.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    bias = transformer_xl(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[0, :, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
