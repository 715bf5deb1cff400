"""Scalable softmax (SSMax): multiply each query by a learned number of its head times ln(number of tokens it sees).

Source: Nakanishi 2025, arXiv:2501.19399, section 2.
Where it goes wrong: it is trained, no switch for a trained model. A query at position 0 is multiplied by 0, which does
no harm in causal attention alone. Pass offset when decoding.
"""

import torch
from torch import Tensor, nn

START = 0.43  # initial strength of each head
CONSTANT = False
SEQ_DIM = 2


class ScalableSoftmax(nn.Module):
    """q = ScalableSoftmax(num_heads)(q), once other encodings have rotated q; one for each layer.

    q [batch, heads, seq_len, head_dim], position_ids [seq_len] or [batch, seq_len]; without them tokens count up from
    offset, which is ignored beside position_ids.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.strength = nn.Parameter(START * torch.ones(num_heads))
        if CONSTANT:
            self.offset = nn.Parameter(torch.zeros(num_heads))

    def forward(self, q: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + q.shape[SEQ_DIM], device=q.device)
        if q.shape[SEQ_DIM] != position_ids.shape[-1]:
            raise ValueError(f"q and position_ids differ in length: {q.shape}, {position_ids.shape}")
        device = "cpu" if q.device.type == "mps" else q.device  # mps has no float64
        dtype = torch.promote_types(q.dtype, torch.float32)
        logs = position_ids.to(device, torch.float64).clamp(min=0).log1p().to(q.device, dtype)  # ln(position + 1)
        if SEQ_DIM == 2:
            temperature = self.strength.to(dtype)[:, None, None] * logs[..., None, :, None]  # [.., heads, seq_len, 1]
        else:
            temperature = self.strength.to(dtype)[:, None] * logs[..., :, None, None]  # [.., seq_len, heads, 1]
        if CONSTANT and SEQ_DIM == 2:
            temperature = temperature + self.offset.to(dtype)[:, None, None]
        elif CONSTANT:
            temperature = temperature + self.offset.to(dtype)[:, None]
        return (q * temperature).to(q.dtype)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    ssmax = ScalableSoftmax(num_heads=2)
    for weight in ssmax.parameters():
        weight.data = 0.1 * torch.arange(2, dtype=torch.float64).cos()
    q = ssmax(x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(q[0, 1, 2] if SEQ_DIM == 2 else q[0, 2, 1], torch.tensor(EXPECTED, dtype=torch.float64))
