"""Attention temperature of Llama 4, Ministral 3 and Inkling: multiply far queries by 1 + STRENGTH ln(1 + intervals).

Source: Meta 2025, Llama 4 (after arXiv:2501.19399); Mistral AI 2025, Ministral 3; Inkling 2026; in transformers 5.23.
Where it goes wrong: in the first INTERVAL positions it does nothing, so a short test finds no error; past them the
three agree nowhere. Llama 4 uses it in layers without rotary alone. Pass offset when decoding.
"""

import torch
from torch import Tensor, nn

INTERVAL = 8192  # positions that keep the temperature 1
STRENGTH = 0.1
FORM = "llama4"
SEQ_DIM = 2


class AttentionTemperature(nn.Module):
    """q = AttentionTemperature()(q), once other encodings have rotated q.

    q [batch, heads, seq_len, head_dim], position_ids [seq_len] or [batch, seq_len]; without them tokens count up from
    offset, which is ignored beside position_ids.
    """

    def forward(self, q: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + q.shape[SEQ_DIM], device=q.device)
        if q.shape[SEQ_DIM] != position_ids.shape[-1]:
            raise ValueError(f"q and position_ids differ in length: {q.shape}, {position_ids.shape}")
        device = "cpu" if q.device.type == "mps" else q.device  # mps has no float64
        position = position_ids.to(device, torch.float64).clamp(min=0)
        if FORM == "llama4":
            growth = 1 + ((position + 1) / INTERVAL).floor()
        elif FORM == "ministral":
            growth = 1 + (position / INTERVAL).floor()
        else:
            growth = ((position + 1) / INTERVAL).clamp(min=1)
        temperature = 1 + STRENGTH * growth.log()
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
    q = AttentionTemperature()(x, torch.tensor([2, 7, 40]) * INTERVAL - 1)
    torch.testing.assert_close(q[0, 1, 2] if SEQ_DIM == 2 else q[0, 2, 1], torch.tensor(EXPECTED, dtype=torch.float64))
