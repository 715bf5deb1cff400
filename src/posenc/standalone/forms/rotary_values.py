"""Rotary on values (RoPER): rotate each value by its position, and the output of attention back by the query's.

Source: Harik and Jayasiri 2022, research.labml.ai/RoPER.html; DeepSeek-V4 in transformers 5.23.0, 2026.
Where it goes wrong: values that are rotated without rotating the output back carry absolute positions, which do not
extrapolate. Logits stay the same: this comes beside rotary on queries and keys.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate, rotate_first

BASE = 10_000.0  # wavelengths 2 pi to 2 pi BASE^(1 - 2 / rotary_dim) (positions)
PARTIAL = 1.0  # share of a head's channels that rotate
TRAILING = False
SEQ_DIM = 2


class RotaryValueEmbedding(nn.Module):
    """out = nn.functional.scaled_dot_product_attention(q, k, rope(v)), then out = rope(out, inverse=True).

    v and out [batch, heads, seq_len, head_dim], position_ids [seq_len] or [batch, seq_len]. Without position_ids tokens
    count up from offset, which is ignored beside position_ids.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.rotary_dim = head_dim if PARTIAL == 1.0 else int(head_dim * PARTIAL + 1e-9)
        if self.rotary_dim % 2:
            raise ValueError(f"an even number of channels rotates, got {self.rotary_dim}")

    def forward(self, v: Tensor, position_ids: Tensor | None = None, offset: int = 0, inverse: bool = False) -> Tensor:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + v.shape[SEQ_DIM], device=v.device)
        if v.shape[SEQ_DIM] != position_ids.shape[-1]:
            raise ValueError(f"v and position_ids differ in length: {v.shape}, {position_ids.shape}")
        device = "cpu" if v.device.type == "mps" else v.device  # mps has no float64
        dim = self.rotary_dim
        freqs = BASE ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
        angles = position_ids.to(device)[..., None] * freqs  # [.., seq_len, pairs], fastest first
        if SEQ_DIM == 2:
            angles = angles.unsqueeze(-3)  # the same for all heads of v [batch, heads, seq_len, head_dim]
        else:
            angles = angles.unsqueeze(-2)  # the same for all heads of v [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), -angles.sin() if inverse else angles.sin()
        if PARTIAL == 1.0:
            return rotate(v, cos, sin)
        elif TRAILING:
            return torch.cat((v[..., :-dim], rotate(v[..., -dim:], cos, sin)), dim=-1)
        else:
            return rotate_first(v, cos, sin)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(3 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    rope, position_ids = RotaryValueEmbedding(x.shape[-1]), torch.tensor([2, 7, 40])
    if SEQ_DIM == 2:
        out = nn.functional.scaled_dot_product_attention(x, x, rope(x, position_ids))
        out = rope(out, position_ids, inverse=True)
    else:
        v = rope(x.transpose(1, 2), position_ids)
        out = nn.functional.scaled_dot_product_attention(x, x, v.transpose(1, 2)).transpose(1, 2)
        out = rope(out, position_ids, inverse=True).transpose(1, 2)
    torch.testing.assert_close(out[0, :, 2].flatten(), torch.tensor(EXPECTED, dtype=x.dtype))
