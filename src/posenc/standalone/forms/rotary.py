"""Rotary position embedding (RoPE): rotate each pair of channels of q and k by an angle proportional to the position.

Source: Su et al. 2021, arXiv:2104.09864, sections 3.2 and 3.4.
Where it goes wrong: weights trained with another pairing of channels give wrong results without an error. Angles in
half precision lose the position after some hundred tokens. Pass offset when decoding. Models break at 1.2 to 1.4 times
the trained length, unless frequencies are rescaled (YaRN, NTK).
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate, rotate_first
from posenc.standalone.forms.schedules.linear import frequencies

BASE = 10_000.0  # wavelengths 2 pi to 2 pi BASE^(1 - 2 / rotary_dim) (positions)
PARTIAL = 1.0  # share of a head's channels that rotate
SCHEDULE = False
HAS_TEMPERATURE = False
BY_HORIZON = False
SEQ_DIM = 2


class RotaryEmbedding(nn.Module):
    """q, k = RotaryEmbedding(head_dim)(q, k), before their product; q, k [batch, heads, seq_len, head_dim].

    Give position_ids [seq_len] or [batch, seq_len], or offset, the number of cached tokens; ids come first.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.rotary_dim = head_dim if PARTIAL == 1.0 else int(head_dim * PARTIAL + 1e-9)
        if self.rotary_dim % 2:
            raise ValueError(f"an even number of channels rotates, got {self.rotary_dim}")

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0, horizon: int | None = None
    ) -> tuple[Tensor, Tensor]:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + k.shape[SEQ_DIM], device=k.device)
        if BY_HORIZON:
            if k.shape[SEQ_DIM] != position_ids.shape[-1]:
                raise ValueError(f"k and position_ids differ in length: {k.shape}, {position_ids.shape}")
        elif not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-1]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if k.device.type == "mps" else k.device  # mps has no float64
        if SCHEDULE:
            if BY_HORIZON:
                # k holds all keys so far, as they were before: they turn otherwise when the text gets longer.
                horizon = offset + k.shape[SEQ_DIM] if horizon is None else horizon
                if HAS_TEMPERATURE:
                    freqs, temperature = frequencies(self.rotary_dim, BASE, horizon)
                    freqs = freqs.to(device)
                else:
                    freqs = frequencies(self.rotary_dim, BASE, horizon).to(device)
            elif HAS_TEMPERATURE:
                freqs, temperature = frequencies(self.rotary_dim, BASE)
                freqs = freqs.to(device)
            else:
                freqs = frequencies(self.rotary_dim, BASE).to(device)
        else:
            freqs = BASE ** -(torch.arange(0, self.rotary_dim, 2, dtype=torch.float64, device=device) / self.rotary_dim)
        angles = position_ids.to(device)[..., None] * freqs  # [.., seq_len, pairs], fastest first
        if SEQ_DIM == 2:
            angles = angles.unsqueeze(-3)  # the same for all heads of q and k [batch, heads, seq_len, head_dim]
        else:
            angles = angles.unsqueeze(-2)  # the same for all heads of q and k [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), angles.sin()
        if HAS_TEMPERATURE:
            cos, sin = cos * temperature, sin * temperature
        if BY_HORIZON:  # q may hold the last tokens alone
            last = (-2, -q.shape[2], q.shape[2]) if SEQ_DIM == 2 else (-3, -q.shape[1], q.shape[1])
            return rotate_first(q, cos.narrow(*last), sin.narrow(*last)), rotate_first(k, cos, sin)
        elif PARTIAL == 1.0:
            return rotate(q, cos, sin), rotate(k, cos, sin)
        else:
            return rotate_first(q, cos, sin), rotate_first(k, cos, sin)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    if BY_HORIZON:
        q, k = RotaryEmbedding(x.shape[-1])(x, x, torch.tensor([2, 7, 40]), horizon=1_000_000)
    else:
        q, k = RotaryEmbedding(x.shape[-1])(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
