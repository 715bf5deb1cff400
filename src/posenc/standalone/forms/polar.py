"""PoPE, polar coordinates: content sets the length of each channel's arrow, and position alone its direction.

Source: Gopalakrishnan et al. 2025, arXiv:2509.10534, section 3. The paper rotates keys by +delta; here queries rotate
by -delta, which is the same logit, and right where query heads share a key head.
Where it goes wrong: q and k come out twice as wide, while the logits are scaled for head_dim. Lengths are never
negative, so attention begins with a strong preference for near tokens. A delta that a step carries out of its range
gets no more gradient.
"""

import math

import torch
from torch import Tensor, nn

BASE = 10_000.0  # wavelengths 2 pi to 2 pi BASE^(1 - 1 / head_dim) (positions)
PHASES = "zero"
SEQ_DIM = 2


class PolarEmbedding(nn.Module):
    """q, k = PolarEmbedding(...)(q, k), before their product; q, k [batch, heads, seq_len, head_dim].

    Give position_ids [seq_len] or [batch, seq_len], or offset, the number of cached tokens; ids come first.
    They come out twice as wide, [.., 2 head_dim]; scale their product by head_dim^-0.5.
    """

    def __init__(self, head_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        self.head_dim = head_dim
        if PHASES == "zero":
            self.delta = nn.Parameter(torch.zeros(num_heads, head_dim))
        elif PHASES == "uniform":
            self.delta = nn.Parameter(2 * math.pi * (torch.rand(num_heads, head_dim) - 1))

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + k.shape[SEQ_DIM], device=k.device)
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-1]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if k.device.type == "mps" else k.device  # mps has no float64
        freqs = BASE ** -(torch.arange(self.head_dim, dtype=torch.float64, device=device) / self.head_dim)
        angles = position_ids.to(device)[..., None] * freqs  # [.., seq_len, head_dim]
        if SEQ_DIM == 2:
            angles = angles.unsqueeze(-3)  # the same for all heads of q and k [batch, heads, seq_len, head_dim]
        else:
            angles = angles.unsqueeze(-2)  # the same for all heads of q and k [batch, seq_len, heads, head_dim]
        if PHASES == "none":
            return arrows(q, angles), arrows(k, angles)
        else:
            delta = self.delta.to(device).double().clamp(-2 * math.pi, 0)  # [heads, head_dim]
            if SEQ_DIM == 2:
                delta = delta[:, None]
            return arrows(q, angles - delta), arrows(k, angles)


def arrows(x: Tensor, angles: Tensor) -> Tensor:
    """Return arrows of length softplus(x) in these directions: their cosine parts, then their sine parts."""
    length = nn.functional.softplus(x.to(torch.promote_types(x.dtype, torch.float32)))
    cos, sin = angles.cos().to(x.device, length.dtype), angles.sin().to(x.device, length.dtype)
    return torch.cat((length * cos, length * sin), dim=-1).to(x.dtype)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(3 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    polar = PolarEmbedding(x.shape[-1], num_heads=2)
    if PHASES != "none":
        polar.delta.data = 0.1 * torch.arange(polar.delta.numel(), dtype=torch.float64).cos().view_as(polar.delta)
    q, k = polar(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(q[0, 1, 2] if SEQ_DIM == 2 else q[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
