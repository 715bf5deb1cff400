"""Shaw's relative position representations: learned vectors of the clipped distance, added to keys and values.

Source: Shaw, Uszkoreit, Vaswani 2018, arXiv:1803.02155, sections 3.1 and 3.2.
Where it goes wrong: all distances past MAX_DISTANCE are alike, so order is lost there. Rows count key position - query
position, and the opposite sign is silently wrong. A tensor of vectors for all pairs, [T, S, head_dim],
is not needed. T5's bias is another encoding: one number for each head and bucket.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.distances import distances
from posenc.standalone.forms.masked_softmax import masked_softmax

MAX_DISTANCE = 16  # positions; the distance from which all share a vector
STD = None
VALUES = True
MUTUAL = False
SEQ_DIM = 2


class ShawRelativePositions(nn.Module):
    """Attention with a learned vector per distance added to each key and value; each layer has its own tables."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        std = head_dim**-0.5 if STD is None else STD
        self.key_table = nn.Parameter(std * torch.randn(2 * MAX_DISTANCE + 1, head_dim))
        if VALUES:
            self.value_table = nn.Parameter(std * torch.randn(2 * MAX_DISTANCE + 1, head_dim))

    if VALUES:

        def forward(
            self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            mask: Tensor | None = None,
            position_ids: Tensor | None = None,
            key_position_ids: Tensor | None = None,
        ) -> Tensor:
            """Return the output, like q. mask [T, S] or [batch, 1 or heads, T, S] is boolean: True = may attend."""
            distance = distances(q, k, position_ids, key_position_ids)
            dtype, scale = torch.promote_types(q.dtype, torch.float32), q.shape[-1] ** -0.5
            if SEQ_DIM == 1:
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch, heads, seq_len, head_dim]
            group = q.shape[1] // k.shape[1]  # query heads that share a key head
            queries, (keys, values) = q.to(dtype), (x.to(dtype).repeat_interleave(group, 1) for x in (k, v))
            rows = MAX_DISTANCE - distance.clamp(-MAX_DISTANCE, MAX_DISTANCE)
            rows = rows.expand(*q.shape[:3], k.shape[2])  # [batch, heads, T, S]
            logits = queries @ keys.mT + table_logits(queries, self.key_table, rows)
            if MUTUAL:
                logits = logits + table_logits(keys, self.key_table, rows.mT).mT
            weights = masked_softmax(scale * logits, mask)
            # Sum the weights of each row of the table before they meet its vector.
            row_weights = weights.new_zeros(*q.shape[:3], len(self.value_table)).scatter_add(-1, rows, weights)
            out = weights @ values + row_weights @ self.value_table.to(dtype)
            if SEQ_DIM == 1:
                return out.transpose(1, 2).to(q.dtype)
            else:
                return out.to(q.dtype)
    else:

        def forward(
            self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
        ) -> Tensor:
            """Return the bias [batch, heads, T, S]. A mask to add is float: 0 where allowed, else -inf."""
            distance = distances(q, k, position_ids, key_position_ids)
            dtype, scale = torch.promote_types(q.dtype, torch.float32), q.shape[-1] ** -0.5
            if SEQ_DIM == 1:
                q, k = q.transpose(1, 2), k.transpose(1, 2)  # [batch, heads, seq_len, head_dim]
            rows = MAX_DISTANCE - distance.clamp(-MAX_DISTANCE, MAX_DISTANCE)
            rows = rows.expand(*q.shape[:3], k.shape[2])  # [batch, heads, T, S]
            bias = table_logits(q.to(dtype), self.key_table, rows)
            if MUTUAL:
                keys = k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], 1)  # query heads may share keys
                bias = bias + table_logits(keys, self.key_table, rows.mT).mT
            return (scale * bias).to(q.dtype)


def table_logits(x: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Return the product of each token x [.., T, head_dim] with the vector of each pair, [.., T, S]."""
    return (x @ table.to(x.dtype).T).gather(-1, rows)


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8)
    ids = torch.tensor([2, 7, 40])
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    shaw = ShawRelativePositions(head_dim=8).double()
    for weight in shaw.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    if not VALUES:
        out = shaw(x, x, ids)[0, :, 2]
    elif SEQ_DIM == 1:
        out = shaw(x, x, x, position_ids=ids)[0, 2]
    else:
        out = shaw(x, x, x, position_ids=ids)[0, :, 2]
    torch.testing.assert_close(out.flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
