"""FoPE: rotary (RoPE) whose pairs rotate by mixtures of its waves, without waves longer than the trained length.

Source: Hua et al. 2024, arXiv:2412.17739, section 4; released as TsinghuaC3I/Fourier-Position-Embedding.
Where it goes wrong: mixtures are no rotation, so a logit is no function of the distance alone. The released mixtures
are frozen noise beside the identity, not trained; its code also sets the sine of dropped waves to 1, which doubles
their share of the logits.
"""

import math

import torch
from torch import Tensor, nn

from posenc.standalone.forms.pairs import rotate

BASE = 10_000.0  # of the spectrum of rotary
TRAINED_LENGTH = 4096  # tokens; longer waves are dropped
GAIN = 0.3  # strength of the noise
PER_HEAD = True
LEARNED = False
SILENCED = "passed"
SEED = 0  # of the noise
SEQ_DIM = 2


class FourierRotaryEmbedding(nn.Module):
    """q, k = FourierRotaryEmbedding(...)(q, k), before their product; q, k [batch, heads, seq_len, head_dim].

    Give position_ids [seq_len] or [batch, seq_len], or offset, the number of cached tokens; ids come first.
    """

    def __init__(self, head_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"an even number of channels rotates, got {head_dim}")
        self.head_dim = head_dim
        waves = sum(2 * math.pi * BASE ** (2 * k / head_dim) <= TRAINED_LENGTH for k in range(head_dim // 2))
        if PER_HEAD:
            sets, variance = num_heads, 2 / (waves * (waves + num_heads))
        else:
            sets, variance = 1, 1 / waves
        seeded = torch.Generator("cpu").manual_seed(SEED)
        noise = torch.randn(2, sets, waves, waves, generator=seeded, dtype=torch.float64, device="cpu")
        mixtures = torch.eye(waves, dtype=torch.float64, device="cpu") + GAIN * math.sqrt(variance) * noise
        if LEARNED:
            self.cos_mixture, self.sin_mixture = (nn.Parameter(m.to(torch.get_default_dtype())) for m in mixtures)
        else:
            self.mixtures = mixtures  # not a buffer, which .half() would round

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + k.shape[SEQ_DIM], device=k.device)
        if not q.shape[SEQ_DIM] == k.shape[SEQ_DIM] == position_ids.shape[-1]:
            raise ValueError(f"q, k and position_ids differ in length: {q.shape}, {k.shape}, {position_ids.shape}")
        device = "cpu" if k.device.type == "mps" else k.device  # mps has no float64
        if LEARNED:
            cos_mixture, sin_mixture = self.cos_mixture.to(device).double(), self.sin_mixture.to(device).double()
        else:
            cos_mixture, sin_mixture = self.mixtures.to(device)
        waves = cos_mixture.shape[-1]
        freqs = BASE ** -(2 * torch.arange(waves, dtype=torch.float64, device=device) / self.head_dim)
        angles = (position_ids.to(device)[..., None] * freqs).unsqueeze(-3)  # [.., 1, seq_len, waves]
        # Mixed for each head [.., heads, seq_len, waves]; the pairs of the dropped waves come last.
        dropped = (0, self.head_dim // 2 - waves)
        cos = nn.functional.pad(angles.cos() @ cos_mixture, dropped, value=1.0)
        sin = nn.functional.pad(angles.sin() @ sin_mixture, dropped, value=0.0 if SILENCED == "passed" else 1.0)
        if SEQ_DIM == 1:
            cos, sin = cos.transpose(-2, -3), sin.transpose(-2, -3)  # q and k are [batch, seq_len, heads, head_dim]
        if PER_HEAD:
            # Keys are repeated for the query heads that share them; repeat the values too.
            if SEQ_DIM == 2:
                k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            else:
                k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        return rotate(q, cos, sin), rotate(k, cos, sin)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(6 * len(EXPECTED), dtype=torch.float64).sin().view(1, 2, 3, -1)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    fope = FourierRotaryEmbedding(x.shape[-1], num_heads=2)
    if LEARNED:
        for weight in fope.parameters():
            weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    q, k = fope(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(k[0, 1, 2] if SEQ_DIM == 2 else k[0, 2, 1], torch.tensor(EXPECTED, dtype=x.dtype))
