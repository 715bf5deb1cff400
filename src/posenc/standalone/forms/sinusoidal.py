"""Sinusoidal positions: add to each token sines and cosines of its position, of wavelengths 2 pi to about 2 pi BASE.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
Where it goes wrong: quality falls past the trained length. Embeddings much smaller than 1 drown: the paper scales them.
"""

import torch
from torch import Tensor, nn

BASE = 10_000.0
LAYOUT = "interleaved"
ENDPOINT = False
AXES = 1
SCALED = False


class SinusoidalPositionalEncoding(nn.Module):
    """SinusoidalPositionalEncoding(d_model)(x) for x [batch, seq_len, d_model], ids [seq_len] or [batch, seq_len]."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        if AXES != 1:  # as He et al. 2021, arXiv:2111.06377, on two axes
            self.width = 2 * -(-d_model // (2 * AXES))  # channels of each axis; those past d_model are cut off
        if SCALED:
            self.scale = nn.Parameter(torch.tensor(d_model**-0.5))

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        if AXES != 1:
            assert position_ids is not None
        elif position_ids is None:  # they count up from offset, the number of tokens in the KV cache
            position_ids = torch.arange(offset, offset + x.shape[1], device=x.device)
        device = "cpu" if x.device.type == "mps" else x.device  # mps has no float64
        if AXES != 1:
            exponents = torch.arange(0, self.width, 2, dtype=torch.float64, device=device) / self.width
        elif LAYOUT == "interleaved":
            exponents = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=device) / self.d_model
        else:
            exponents = torch.arange(0, self.d_model - 1, 2, dtype=torch.float64, device=device) / self.d_model
        if ENDPOINT:
            exponents = exponents / exponents.max().clamp(min=1e-9)  # the longest wavelength is exactly 2 pi BASE
        if AXES == 1:
            angles = position_ids.to(device)[..., None] * BASE**-exponents  # [1 or batch, seq_len, pairs]
            if LAYOUT == "interleaved":
                pe = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., : self.d_model]
            elif LAYOUT == "cosines_first":
                pe = torch.cat((angles.cos(), angles.sin()), dim=-1)
            else:
                pe = torch.cat((angles.sin(), angles.cos()), dim=-1)
            if LAYOUT != "interleaved":
                pe = nn.functional.pad(pe, (0, self.d_model % 2))  # an odd channel has no pair
        else:
            angles = position_ids.to(device)[..., None] * BASE**-exponents  # [.., seq_len, axes, pairs]
            if LAYOUT == "interleaved":
                pe = torch.stack((angles.sin(), angles.cos()), dim=-1)  # [.., seq_len, axes, pairs, 2]
            elif LAYOUT == "concatenated":
                pe = torch.stack((angles.sin(), angles.cos()), dim=-2)  # [.., seq_len, axes, 2, pairs]
            elif LAYOUT == "cosines_first":
                pe = torch.stack((angles.cos(), angles.sin()), dim=-3)  # [.., seq_len, 2, axes, pairs]
            else:
                pe = torch.stack((angles.sin(), angles.cos()), dim=-3)  # [.., seq_len, 2, axes, pairs]
            pe = pe.flatten(-3)[..., : self.d_model]
        if SCALED:
            pe = pe.to(x.device, torch.promote_types(x.dtype, torch.float32)) * self.scale
        return x + pe.to(x.device, x.dtype).expand_as(x)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 3, 16)
    if AXES != 1:
        position_ids = torch.tensor([[position // n for n in range(1, AXES + 1)] for position in (2, 7, 40)])
        out = SinusoidalPositionalEncoding(16).double()(x, position_ids)
    else:
        out = SinusoidalPositionalEncoding(16).double()(x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(out[0, 2], torch.tensor(EXPECTED, dtype=torch.float64))
