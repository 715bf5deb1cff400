"""Multimodal rotary (M-RoPE): the pairs of rotary are divided among time, height and width; for text it is rotary.

Source: Wang et al. 2024, arXiv:2409.12191, section 2.1 (Qwen2-VL); Huang et al. 2025, arXiv:2510.23095 (interleaved);
Wei et al. 2025, arXiv:2502.05173, section 3 (VideoRoPE, time last).
Where it goes wrong: after an image the text goes on one past its largest coordinate, so the next position is not the
number of tokens. Chunked sections give time the fastest pairs alone, whose angles repeat within few frames.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate, rotate_first
from posenc.standalone.forms.schedules.linear import frequencies

BASE = 10_000.0  # wavelengths 2 pi to 2 pi BASE^(1 - 2 / rotary_dim) (positions)
PARTIAL = 1.0  # share of a head's channels that rotate
SECTIONS = None  # pairs of time, height and width
ORDER = "chunked"
SCHEDULE = False
HAS_TEMPERATURE = False
SEQ_DIM = 2


class MultimodalRotaryEmbedding(nn.Module):
    """q, k = MultimodalRotaryEmbedding(head_dim)(q, k, position_ids), for q, k [batch, heads, seq_len, head_dim].

    position_ids [seq_len, axes] or [batch, seq_len, axes] are the time, height and width of each token. Text has the
    same number on all axes, and alone needs none: it counts up from offset, which is ignored beside position_ids.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.rotary_dim = head_dim if PARTIAL == 1.0 else int(head_dim * PARTIAL + 1e-9)
        if self.rotary_dim % 2:
            raise ValueError(f"an even number of channels rotates, got {self.rotary_dim}")
        pairs = self.rotary_dim // 2
        if SECTIONS is not None:
            sections = SECTIONS
        elif ORDER == "interleaved":
            side = max(pairs * 5 // 16, 1)
            sections = (pairs - 2 * side, side, side)  # pairs of time, height and width; as in Qwen3-VL
        else:
            side = max(pairs * 6 // 16, 1)
            sections = (pairs - 2 * side, side, side)  # pairs of time, height and width; as in Qwen2-VL
        if ORDER == "chunked":
            # The axis of each pair, the fastest pair first: t t .. h h .. w w ..
            self.axis_of_pair = [axis for axis, n in enumerate(sections) for _ in range(n)]
        elif ORDER == "interleaved":
            # The axis of each pair, the fastest pair first: t h w t h w .. t t
            n = len(sections)
            self.axis_of_pair = [pair % n if pair < n * sections[pair % n] else 0 for pair in range(pairs)]
        else:
            # The axis of each pair, the fastest pair first: h w h w .. t t
            time, *space = sections
            turns = [axis for turn in range(pairs) for axis, n in enumerate(space, 1) if turn < n]
            self.axis_of_pair = turns + [0] * time

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        if position_ids is None:  # text: all axes count up from offset
            text = torch.arange(offset, offset + k.shape[SEQ_DIM], device=k.device)
            position_ids = text[:, None].expand(-1, max(self.axis_of_pair) + 1)  # [seq_len, axes]
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-2]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if k.device.type == "mps" else k.device  # mps has no float64
        dim = self.rotary_dim
        if SCHEDULE:
            if HAS_TEMPERATURE:
                freqs, temperature = frequencies(dim, BASE)
                freqs = freqs.to(device)
            else:
                freqs = frequencies(dim, BASE).to(device)
        else:
            freqs = BASE ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
        angles = position_ids.to(device)[..., self.axis_of_pair] * freqs  # [.., seq_len, pairs]
        if SEQ_DIM == 2:
            angles = angles.unsqueeze(-3)  # the same for all heads of q and k [batch, heads, seq_len, head_dim]
        else:
            angles = angles.unsqueeze(-2)  # the same for all heads of q and k [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), angles.sin()
        if HAS_TEMPERATURE:
            cos, sin = cos * temperature, sin * temperature
        if PARTIAL == 1.0:
            return rotate(q, cos, sin), rotate(k, cos, sin)
        else:
            return rotate_first(q, cos, sin), rotate_first(k, cos, sin)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    axes = 3 if SECTIONS is None else len(SECTIONS)
    position_ids = torch.arange(3 * axes, dtype=torch.float64).sin().view(3, axes)
    q, k = MultimodalRotaryEmbedding(x.shape[-1])(x, x, position_ids)
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
