"""xPos: rotary (RoPE) whose logits fade with the distance, those of fast pairs most; for causal attention.

Source: Sun et al. 2022, arXiv:2212.10554, section 2.2; numbers as in its released code, torchscale.
Where it goes wrong: without a causal mask, future keys grow exponentially and win the softmax. The released code takes
the middle of each sequence as CENTRE, which is wrong for cached keys once the sequence grows. With the paper's numbers
sizes are scaled by 256 at 2,266 positions from CENTRE. Float16 is inf at about 4,500, float32 NaN at about 36,500.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate

BASE = 10_000.0  # wavelengths 2 pi to 2 pi BASE^(1 - 2 / head_dim) (positions)
SCALE_BASE = 512.0  # positions in which the logit of pair k fades by zeta_k
GAMMA = 0.4  # zeta of the fastest pair is GAMMA / (1 + GAMMA)
CENTRE = 0.0  # position where queries and keys keep their size
SEQ_DIM = 2


class XPos(nn.Module):
    """q, k = XPos(head_dim)(q, k), before their product; q, k [batch, heads, seq_len, head_dim].

    Give position_ids [seq_len] or [batch, seq_len], or offset, the number of cached tokens; ids come first.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"an even number of channels rotates, got {head_dim}")
        self.head_dim = head_dim

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + k.shape[SEQ_DIM], device=k.device)
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-1]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if k.device.type == "mps" else k.device  # mps has no float64
        share = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=device) / self.head_dim
        freqs = BASE**-share  # radians per position, fastest first
        zeta = (share + GAMMA) / (1 + GAMMA)
        positions = position_ids.to(device).double()[..., None]  # [.., seq_len, 1]
        angles, sizes = positions * freqs, zeta ** ((positions - CENTRE) / SCALE_BASE)  # [.., seq_len, pairs]
        if SEQ_DIM == 2:
            angles, sizes = angles.unsqueeze(-3), sizes.unsqueeze(-3)  # q and k are [batch, heads, seq_len, head_dim]
        else:
            angles, sizes = angles.unsqueeze(-2), sizes.unsqueeze(-2)  # q and k are [batch, seq_len, heads, head_dim]
        cos, sin = angles.cos(), angles.sin()
        return rotate(q, cos * sizes, sin * sizes), rotate(k, cos / sizes, sin / sizes)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    q, k = XPos(x.shape[-1])(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(q[0, 1, 2] if SEQ_DIM == 2 else q[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
