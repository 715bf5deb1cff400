"""KERPLE: subtract from each logit a learned function of the distance that grows slowly, a logarithm or a power.

Source: Chi, Fan, Ramadge, Rudnicky 2022, arXiv:2205.09921, equations 1, 3 and 4.
Where it goes wrong: the bias only decays, so no head can look at a chosen far distance. A large r1 early in training
shuts far keys out for good. A plain clamp of r1 and r2 stops their gradient, and they never come back.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import distances

KIND = "log"
FORM = "released"
LOWEST = 0.01  # of r1 and r2, as in the released code
FLEX = False
SEQ_DIM = 2


class Kerple(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=kerple(q, k) + mask); one for each layer."""

    def __init__(self, num_heads: int, head_dim: int = 64) -> None:
        super().__init__()
        if KIND == "log":
            self.r1, self.r2 = nn.Parameter(2 * torch.rand(num_heads)), nn.Parameter(torch.rand(num_heads))
        else:
            self.r1, self.r2 = nn.Parameter(torch.rand(num_heads)), nn.Parameter(2 * torch.rand(num_heads))
        if FORM == "paper":  # equation 1 adds the bias before the scaling
            self.scale = head_dim**-0.5

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        distance = distances(q, k, position_ids, key_position_ids).abs()  # [1 or batch, 1, queries, keys]
        r1, r2 = hold_in_bounds(self.r1)[:, None, None], hold_in_bounds(self.r2, highest=2.0)[:, None, None]
        if KIND == "log":
            bias = -r1 * torch.log1p(r2 * distance)
        else:
            bias = -r1 * distance**r2
        if FORM == "paper":
            bias = bias * self.scale
        return bias.to(q.dtype)

    if FLEX:

        def score_mod(self, offset: int = 0):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on."""
            r1, r2 = hold_in_bounds(self.r1), hold_in_bounds(self.r2, highest=2.0)
            if FORM == "paper":
                r1 = r1 * self.scale

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                distance = (offset + q_idx - kv_idx).abs()
                if KIND == "log":
                    bias = -r1[head] * torch.log1p(r2[head] * distance)
                else:
                    bias = -r1[head] * distance ** r2[head]
                return score + bias.to(score.dtype)

            return add_bias


def hold_in_bounds(r: Tensor, highest: float = float("inf")) -> Tensor:
    """Return r within its bounds, in float32 or wider. Its gradient passes there too, so that it can come back."""
    r = r.to(torch.promote_types(r.dtype, torch.float32))
    if KIND == "log":
        return r.detach().clamp(min=LOWEST) + (r - r.detach())
    else:
        return r.detach().clamp(LOWEST, highest) + (r - r.detach())


EXPECTED = ()

if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    kerple = Kerple(num_heads=2, head_dim=8)
    for weight in kerple.parameters():
        weight.data = 0.1 * torch.arange(2, dtype=torch.float64).cos()
    bias = kerple(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
