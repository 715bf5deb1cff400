"""Inkling's relative bias: each token mixes its own curve over past distances from a few learned profiles.

Source: Thinking Machines, Inkling, 2026, as in transformers 5.23 models/inkling (no paper).
Where it goes wrong: the mixture comes from the input of the layer, not from the query. Nothing divides the bias. Its
models scale q . k by 1/head_dim and, in full layers, multiply this bias by their temperature too. From MAX_DISTANCE on,
and for keys in the future, there is no bias.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import distances

MAX_DISTANCE = 1024  # positions
RANK = 16  # number of profiles
STD = 0.02  # of the initial weights
SEQ_DIM = 2


class InklingBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(x, k) + mask, scale=1 / head_dim)."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.to_mixture = nn.Linear(d_model, num_heads * RANK, bias=False)
        self.profiles = nn.Parameter(STD * torch.randn(RANK, MAX_DISTANCE))
        nn.init.normal_(self.to_mixture.weight, std=STD)

    def forward(
        self, x: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [batch, heads, T, S] for the layer's input x [batch, T, d_model] and its keys k.

        A mask to add is float: 0 where allowed, else -inf.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        mixture = nn.functional.linear(x.to(dtype), self.to_mixture.weight.to(dtype))
        mixture = mixture.unflatten(-1, (self.num_heads, RANK))  # [batch, T, heads, RANK]
        if SEQ_DIM == 2:
            mixture = mixture.transpose(1, 2)
        distance = distances(mixture, k, position_ids, key_position_ids)
        if SEQ_DIM == 1:
            mixture = mixture.transpose(1, 2)
        curves = mixture @ self.profiles.to(dtype)  # [batch, heads, T, MAX_DISTANCE]
        in_reach = (distance >= 0) & (distance < MAX_DISTANCE)
        index = distance.clamp(0, MAX_DISTANCE - 1).expand(*curves.shape[:3], -1)  # [batch, heads, T, S]
        return curves.gather(-1, index).masked_fill(~in_reach, 0.0).to(x.dtype)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin()
    if SEQ_DIM == 2:
        k = x.view(1, 2, 3, 8)
    else:
        k = x.view(1, 3, 2, 8)
    inkling = InklingBias(d_model=16, num_heads=2).double()
    for weight in inkling.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    bias = inkling(x.view(1, 3, 16), k, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[0, :, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
