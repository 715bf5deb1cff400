"""Proportional rotary (p-RoPE): rotary whose slow pairs of channels stand still, and carry content without position.

Source: Barbero et al. 2024, arXiv:2410.06205, section 6; Gemma 4 in transformers for the rounding.
Where it goes wrong: it is not partial rotary, though both have a `partial_rotary_factor`: that one turns the first
channels with a whole spectrum of their own, this one cuts the spectrum of the head. With few pairs the longest
wavelength is short (160 positions for head_dim 128, BASE 1e6, PARTIAL 0.25).
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate
from posenc.standalone.forms.schedules.linear import frequencies

BASE = 10_000.0  # of the spectrum of the whole head
PARTIAL = 0.25  # share of the pairs that rotate, the fastest ones
SCHEDULE = False
HAS_TEMPERATURE = False
SEQ_DIM = 2


class ProportionalRotaryEmbedding(nn.Module):
    """q, k = ProportionalRotaryEmbedding(head_dim)(q, k), before their product; q, k [batch, heads, seq_len, head_dim].

    Give position_ids [seq_len] or [batch, seq_len], or offset, the number of cached tokens; ids come first.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"an even number of channels rotates, got {head_dim}")
        self.head_dim = head_dim
        self.rotating_pairs = max(int(head_dim * PARTIAL + 1e-9) // 2, 1)

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + k.shape[SEQ_DIM], device=k.device)
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-1]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if k.device.type == "mps" else k.device  # mps has no float64
        channels = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=device)
        if SCHEDULE:
            if HAS_TEMPERATURE:
                freqs, temperature = frequencies(self.head_dim, BASE)
                freqs = freqs.to(device)
            else:
                freqs = frequencies(self.head_dim, BASE).to(device)
        else:
            freqs = BASE ** -(channels / self.head_dim)  # radians per position, fastest first
        freqs = freqs * (channels < 2 * self.rotating_pairs)
        angles = position_ids.to(device)[..., None] * freqs  # [.., seq_len, pairs]
        if SEQ_DIM == 2:
            angles = angles.unsqueeze(-3)  # the same for all heads of q and k [batch, heads, seq_len, head_dim]
        else:
            angles = angles.unsqueeze(-2)  # the same for all heads of q and k [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), angles.sin()
        if HAS_TEMPERATURE:
            cos, sin = cos * temperature, sin * temperature
        return rotate(q, cos, sin), rotate(k, cos, sin)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    q, k = ProportionalRotaryEmbedding(x.shape[-1])(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
