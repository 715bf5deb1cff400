"""Learned positions: add to each token a trained vector, one for each position.

Source: Gehring et al. 2017, arXiv:1705.03122, section 3.1; Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
Where it goes wrong: a position that training did not reach has an untrained vector. Position ids of max_seq_len or more
have none: a device-side assert on a GPU, which stops all later work. `table` is the `wpe.weight` of GPT-2.
"""

import torch
from torch import Tensor, nn

STD = 0.02  # of the initial vectors
OVERRUN = "error"
REFUSED_VALUES = ("interpolate",)


class LearnedPositionalEncoding(nn.Module):
    """LearnedPositionalEncoding(d_model)(x) for x [batch, seq_len, d_model], ids [seq_len] or [batch, seq_len]."""

    def __init__(self, d_model: int, max_seq_len: int = 5000) -> None:
        super().__init__()
        self.table = nn.Parameter(STD * torch.randn(max_seq_len, d_model))

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + x.shape[1], device=x.device)
            if OVERRUN == "error":
                if offset + x.shape[1] > len(self.table):
                    raise ValueError(f"{offset + x.shape[1]} positions do not fit max_seq_len = {len(self.table)}")
        if OVERRUN == "clamp":
            # All tokens past the table have its last vector.
            position_ids = position_ids.clamp(max=len(self.table) - 1)
        return x + nn.functional.embedding(position_ids, self.table).to(x.dtype).expand_as(x)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 3, 16)
    learned = LearnedPositionalEncoding(16, max_seq_len=64).double()
    for weight in learned.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    out = learned(x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(out[0, 2], torch.tensor(EXPECTED, dtype=torch.float64))
