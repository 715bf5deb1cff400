"""Learned rotary (RoPE): rotary whose frequencies are trained, as a factor e^shift on those of rotary.

Source: Heo et al. 2024, arXiv:2403.13298, section 3.2; `learned_freq` of lucidrains/rotary-embedding-torch, which
trains the frequency itself.
Where it goes wrong: the gradient of a shift grows with the distance, so it wants a smaller learning rate than weights
do. A shift in bfloat16 is rounded to one part in 512, and the error of the angle grows with the position.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate

BASE = 10_000.0  # of the frequencies before training
PER_HEAD = False
SEQ_DIM = 2


class LearnedRotaryEmbedding(nn.Module):
    """q, k = LearnedRotaryEmbedding(...)(q, k), before their product; q, k [batch, heads, seq_len, head_dim].

    Give position_ids [seq_len] or [batch, seq_len], or offset, the number of cached tokens; ids come first.
    """

    def __init__(self, head_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"an even number of channels rotates, got {head_dim}")
        if PER_HEAD:
            self.shift = nn.Parameter(torch.zeros(num_heads, head_dim // 2))
        else:
            self.shift = nn.Parameter(torch.zeros(head_dim // 2))

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + k.shape[SEQ_DIM], device=k.device)
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-1]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if k.device.type == "mps" else k.device  # mps has no float64
        pairs = self.shift.shape[-1]
        freqs = BASE ** -(torch.arange(pairs, dtype=torch.float64, device=device) / pairs)
        freqs = freqs * self.shift.to(device).double().exp()  # radians per position
        if PER_HEAD:
            angles = position_ids.to(device)[..., None, None] * freqs  # [.., seq_len, heads, pairs]
            # Keys are repeated for the query heads that share them; repeat the values too.
            if SEQ_DIM == 2:
                angles = angles.transpose(-2, -3)  # q and k are [batch, heads, seq_len, head_dim]
                k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            else:
                k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        else:
            angles = position_ids.to(device)[..., None] * freqs  # [.., seq_len, pairs]
            if SEQ_DIM == 2:
                angles = angles.unsqueeze(-3)  # the same for all heads of q and k [batch, heads, seq_len, head_dim]
            else:
                angles = angles.unsqueeze(-2)  # the same for all heads of q and k [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), angles.sin()
        return rotate(q, cos, sin), rotate(k, cos, sin)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    rope = LearnedRotaryEmbedding(x.shape[-1], num_heads=2)
    rope.shift.data = 0.1 * torch.arange(rope.shift.numel(), dtype=torch.float64).cos().view_as(rope.shift)
    q, k = rope(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
