"""Log-n scaling: multiply each query by the logarithm of the number of tokens that it sees; 1 at the trained length.

Source: Su 2021, kexue.fm/archives/8823; Su 2023, kexue.fm/archives/9708 (ReRoPE, which has the floor 1).
Where it goes wrong: without a floor the first query is multiplied by 0, and a model that was trained plain loses its
sharpness. Pass offset when decoding. The count of tokens is that of causal attention.
"""

import math

import torch
from torch import Tensor, nn

TRAINED_LENGTH = 64  # tokens
LEAST = 0.0  # the floor of the temperature
SEQ_DIM = 2


class LogNScaling(nn.Module):
    """q = LogNScaling()(q), once other encodings have rotated q.

    q [batch, heads, seq_len, head_dim], position_ids [seq_len] or [batch, seq_len]; without them tokens count up from
    offset, which is ignored beside position_ids.
    """

    def forward(self, q: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + q.shape[SEQ_DIM], device=q.device)
        if q.shape[SEQ_DIM] != position_ids.shape[-1]:
            raise ValueError(f"q and position_ids differ in length: {q.shape}, {position_ids.shape}")
        device = "cpu" if q.device.type == "mps" else q.device  # mps has no float64
        count = position_ids.to(device, torch.float64).clamp(min=0) + 1  # tokens that the query sees
        temperature = count.log() / math.log(TRAINED_LENGTH)
        if LEAST:
            temperature = temperature.clamp(min=LEAST)
        if SEQ_DIM == 2:
            temperature = temperature[..., None, :, None]  # [.., 1, seq_len, 1], for every head
        else:
            temperature = temperature[..., :, None, None]  # [.., seq_len, 1, 1], for every head
        return (q * temperature.to(q.device, torch.promote_types(q.dtype, torch.float32))).to(q.dtype)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    q = LogNScaling()(x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(q[0, 1, 2] if SEQ_DIM == 2 else q[0, 2, 1], torch.tensor(EXPECTED, dtype=torch.float64))
