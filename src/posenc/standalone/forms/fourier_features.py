"""Fourier features: add to each token sines and cosines of its place in a frame, at several frequencies on each axis.

Source: Tancik et al. 2020, arXiv:2006.10739, section 4 (gaussian); Jaegle et al. 2021, arXiv:2103.03206, section 3.2
(linear); Li et al. 2021, arXiv:2106.02795, section 3 (learned).
Where it goes wrong: past the frame, where training has never been, features repeat or are noise. A scale that is too
large makes neighbours strangers, one too small blurs them. The frame has to stay that of the training.
"""

import math

import torch
from torch import Tensor, nn

AXES = 1
KIND = "linear"
MAX_FREQ = 0.0  # half turns over the frame at the highest frequency
CENTRES = False
SCALE = 1.0  # deviation of the random frequencies, over half the frame (gaussian: in turns, learned: in radians)
SEED = 0
HIDDEN = 32  # width of the hidden layer


class FourierFeatures(nn.Module):
    """x = FourierFeatures(d_model, max_seq_len)(x, position_ids): positions 0 to max_seq_len - 1 are in the frame."""

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.d_model, self.max_seq_len = d_model, max_seq_len
        if KIND == "gaussian":
            generator = torch.Generator("cpu").manual_seed(SEED)
            shape = (AXES, (d_model + 1) // 2)
            self.freqs = SCALE * torch.randn(shape, generator=generator, device="cpu", dtype=torch.float64)
        elif KIND == "learned":
            pairs = (d_model + 1) // 2
            self.frequency = nn.Parameter(SCALE * torch.randn(AXES, pairs))
            self.inner, self.outer = nn.Linear(2 * pairs, HIDDEN), nn.Linear(HIDDEN, d_model)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if AXES != 1:
            assert position_ids is not None
        elif position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + x.shape[1], device=x.device)
        device = "cpu" if x.device.type == "mps" else x.device  # mps has no float64
        place = position_ids.to(device, torch.float64)
        if CENTRES:
            place = (2 * place + 1) / self.max_seq_len - 1  # of the centres of cells, which fill the frame from -1 to 1
        else:
            place = 2 * place / max(self.max_seq_len - 1, 1) - 1  # from -1 to 1 in the frame
        if KIND == "gaussian" or KIND == "learned":
            if AXES == 1:
                place = place[..., None]
        else:
            if AXES == 1:
                pairs = (self.d_model + 1) // 2
            else:
                pairs = -(-self.d_model // (2 * AXES))  # of each axis; channels past d_model are cut off
            steps = torch.arange(pairs, dtype=torch.float64, device=device) / max(pairs - 1, 1)
            if MAX_FREQ:
                top = MAX_FREQ / 2
            else:
                top = self.max_seq_len / 2  # at which neighbours are half a turn apart
            if KIND == "linear":
                freqs = 1 + steps * (top - 1)  # turns over the frame
            else:
                freqs = top**steps  # turns over the frame
        if KIND == "learned":
            angles = place @ self.frequency.to(place)  # [.., seq_len, pairs]
            waves = torch.cat((angles.cos(), angles.sin()), dim=-1) / math.sqrt(2 * self.frequency.shape[1])
            hidden = nn.functional.linear(waves, self.inner.weight.to(waves), self.inner.bias.to(waves))
            hidden = nn.functional.gelu(hidden)
            pe = nn.functional.linear(hidden, self.outer.weight.to(waves), self.outer.bias.to(waves))
        elif KIND == "gaussian":
            angles = 2 * math.pi * place @ self.freqs.to(device)  # [.., seq_len, pairs]
            pe = torch.cat((angles.sin(), angles.cos()), dim=-1)[..., : self.d_model]
        elif AXES == 1:
            angles = math.pi * place[..., None] * freqs  # [1 or batch, seq_len, pairs]
            pe = torch.cat((angles.sin(), angles.cos()), dim=-1)[..., : self.d_model]
        else:
            angles = math.pi * place[..., None] * freqs  # [.., seq_len, axes, pairs]
            pe = torch.cat((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., : self.d_model]
        return x + pe.to(x.device, x.dtype).expand_as(x)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 3, 16)
    position_ids = torch.tensor([2, 7, 40])
    if AXES != 1:
        position_ids = torch.stack([position_ids // n for n in range(1, AXES + 1)], dim=-1)
    if KIND == "learned":
        fourier = FourierFeatures(16, max_seq_len=64).double()
        for weight in fourier.parameters():
            weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    else:
        fourier = FourierFeatures(16, max_seq_len=64)
    torch.testing.assert_close(fourier(x, position_ids)[0, 2], torch.tensor(EXPECTED, dtype=torch.float64))
