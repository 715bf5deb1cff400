"""FIRE: add to each logit a small network's output for the distance, relative to the query's own position.

Source: Li et al. 2023, arXiv:2310.04418, section 3 and appendix.
Where it goes wrong: with LENGTH far above the trained length the quotient is a plain logarithm of the distance, and
nothing is interpolated. The bias of two tokens depends on where they stand: in decoding queries need their positions.
The hidden layer of all pairs of tokens is in memory.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.query_and_key_ids import query_and_key_ids

WIDTH = 32  # neurons
RATE = 0.1  # where c starts (1/position)
LENGTH = 512.0  # where the threshold L starts (positions); take the trained length
EPS = 1e-6
FLEX = False
SEQ_DIM = 2
REPLACED_OPTIONS = ("shared",)


class FIREBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=fire(q, k) + mask); one for each layer."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.tensor([RATE]))
        self.multiplier = nn.Parameter(torch.ones(1))  # of LENGTH
        self.hidden, self.out = nn.Linear(1, WIDTH), nn.Linear(WIDTH, num_heads)

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        ids, key_ids = query_and_key_ids(q, k, position_ids, key_position_ids)
        distance = (ids[..., :, None] - key_ids[..., None, :]).abs()  # [.., T, S]
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        c, threshold = self.c.to(dtype).abs(), (self.multiplier.to(dtype) * LENGTH).abs()
        x = psi(c, distance) / (psi(c, torch.maximum(threshold, ids[..., :, None])) + EPS)
        with torch.autocast(q.device.type, enabled=False):
            x = nn.functional.linear(x[..., None], self.hidden.weight.to(x.dtype), self.hidden.bias.to(x.dtype)).relu()
            x = nn.functional.linear(x, self.out.weight.to(x.dtype), self.out.bias.to(x.dtype))
        return x.movedim(-1, -3).to(q.dtype)

    if FLEX:

        def score_mod(self, offset: int = 0):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on."""
            dtype = torch.promote_types(self.c.dtype, torch.float32)
            c, threshold = self.c.to(dtype).abs(), (self.multiplier.to(dtype) * LENGTH).abs()
            bends, slopes, intercepts = self.pieces()

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                first = torch.zeros_like(head)
                rate, position = c[first], offset + q_idx
                x = psi(rate, (position - kv_idx).abs())
                x = x / (psi(rate, torch.maximum(threshold[first], position)) + EPS)
                piece = torch.zeros_like(position - kv_idx)
                for neuron in range(WIDTH):
                    piece = piece + (x > bends[first + neuron])
                return score + (slopes[head, piece] * x + intercepts[head, piece]).to(score.dtype)

            return add_bias

        def pieces(self) -> tuple[Tensor, Tensor, Tensor]:
            """Return the network as the pieces of a line: where it bends [WIDTH], and slopes and intercepts of heads.

            FlexAttention reads single numbers alone, and takes one reading of each tensor with a gradient.
            """
            dtype = torch.promote_types(self.c.dtype, torch.float32)
            weight, bias = self.hidden.weight[:, 0].to(dtype), self.hidden.bias.to(dtype)
            bends = torch.where(weight == 0, 0, -bias / weight).detach().sort().values
            points = torch.cat((bends[:1] - 1, (bends[1:] + bends[:-1]) / 2, bends[-1:] + 1))  # one of each piece
            is_on = weight * points[:, None] + bias > 0  # [WIDTH + 1, WIDTH]
            out = self.out.weight.to(dtype)[:, None] * is_on  # [heads, WIDTH + 1, WIDTH]
            return bends, (out * weight).sum(-1), (out * bias).sum(-1) + self.out.bias.to(dtype)[:, None]


def psi(c: Tensor, x: Tensor) -> Tensor:
    """Return ln(c x + 1)."""
    return torch.log1p(c * x)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    fire = FIREBias(num_heads=2).double()
    for weight in fire.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    bias = fire(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
