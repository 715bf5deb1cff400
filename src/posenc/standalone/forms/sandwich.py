"""Sandwich: add to each logit the dot product of the sinusoidal vectors of both positions, compressed for each head.

Source: Chi, Fan, Rudnicky, Ramadge 2022, arXiv:2212.10356, section 5; the sum begins at p = 0, as in the released code.
Where it goes wrong: WIDTH is 128 whatever the model's width. The first head gets up to WIDTH H/16: of many heads it is
one that looks at its own token only. Cosines of float32 angles are wrong far out.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.query_and_key_ids import query_and_key_ids

WIDTH = 128  # channels of the sinusoidal vectors
BASE = 10_000.0  # their wavelengths run from 2 pi to about 2 pi BASE positions
FLEX = False
SEQ_DIM = 2


class Sandwich(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sandwich(q, k) + mask)."""

    def __init__(self, num_heads: int, max_seq_len: int = 4096) -> None:
        super().__init__()
        self.num_heads = num_heads
        if FLEX:
            self.max_seq_len = max_seq_len  # the most keys of score_mod

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        ids, key_ids = query_and_key_ids(q, k, position_ids, key_position_ids)
        # cos(a - b) = cos a cos b + sin a sin b: the sum of cosines of the distance, without a table of all of them
        cosines = (sinusoids(ids) @ sinusoids(key_ids).mT).unsqueeze(-3)  # [1 or batch, 1, T, S]
        head = torch.arange(1, self.num_heads + 1, dtype=torch.float64, device=cosines.device)[:, None, None]
        return (self.num_heads / (8 * head) * cosines).to(q.device, q.dtype)

    if FLEX:

        def score_mod(self, offset: int = 0, device: torch.device | str | None = None):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on.

            device  of the queries, for the table of the sums of cosines
            """
            num_heads, positions = self.num_heads, torch.arange(self.max_seq_len, device=device)
            cosines = (sinusoids(positions) @ sinusoids(positions[0])).to(positions.device, torch.float32)

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                bias = num_heads / (8 * (head + 1)) * cosines[(offset + q_idx - kv_idx).abs()]
                return score + bias.to(score.dtype)

            return add_bias


def sinusoids(position_ids: Tensor) -> Tensor:
    """Return cos and sin of position BASE^(-2p/WIDTH), p = 0..WIDTH/2-1, in float64 [.., WIDTH]."""
    device = "cpu" if position_ids.device.type == "mps" else position_ids.device  # mps has no float64
    freqs = BASE ** -(torch.arange(0, WIDTH, 2, dtype=torch.float64, device=device) / WIDTH)
    angles = position_ids.to(device)[..., None] * freqs
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    bias = Sandwich(num_heads=2)(x, x, torch.tensor([2, 7, 40]))
    torch.testing.assert_close(bias[:, 2].flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
