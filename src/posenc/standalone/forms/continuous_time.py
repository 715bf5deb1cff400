"""Time2Vec: add to each token a line and waves of its time, of learned frequencies and phases; times may be irregular.

Source: Kazemi et al. 2019, arXiv:1907.05321, section 4. It concatenates them to the input of a layer; its matrix on
[x, t] is a matrix on x plus one on t, so adding is the same model.
Where it goes wrong: the line grows without bound, and drowns the tokens far past the trained times. Frequencies hardly
move in training, so where they begin decides much: scale the times to suit N(0, 1) radians.
"""

import math

import torch
from torch import Tensor, nn

SIZE = 0  # numbers that a time becomes, before a matrix projects them to d_model
TRAINED_LENGTH = 4096  # positions; the unit of time of the line


class Time2Vec(nn.Module):
    """x = Time2Vec(d_model)(x, times), for x [batch, seq_len, d_model] and times [seq_len] or [batch, seq_len]."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        if SIZE:
            self.frequency = nn.Parameter(torch.randn(SIZE))  # radians per position
            self.phase = nn.Parameter(math.pi * (2 * torch.rand(SIZE) - 1))
            self.project = nn.Parameter(SIZE**-0.5 * torch.randn(d_model, SIZE))
        else:
            self.frequency = nn.Parameter(torch.randn(d_model))  # radians per position
            self.phase = nn.Parameter(math.pi * (2 * torch.rand(d_model) - 1))

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + x.shape[1], device=x.device)
        device = "cpu" if x.device.type == "mps" else x.device  # mps has no float64
        time = position_ids.to(device, torch.float64)[..., None]  # [1 or batch, seq_len, 1]
        frequency, phase = self.frequency.to(time), self.phase.to(time)
        line = time / TRAINED_LENGTH * frequency[:1] + phase[:1]
        waves = (time * frequency[1:] + phase[1:]).sin()
        numbers = torch.cat((line, waves), dim=-1)
        if SIZE:
            numbers = numbers @ self.project.to(time).T
        return x + numbers.to(x.device, x.dtype).expand_as(x)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 3, 16)
    time2vec = Time2Vec(16).double()
    for weight in time2vec.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    out = time2vec(x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(out[0, 2], torch.tensor(EXPECTED, dtype=torch.float64))
