"""ALiBi: subtract from each logit a slope of its head times the distance between query and key.

Source: Press, Smith, Lewis 2021, arXiv:2108.12409, section 3.
Where it goes wrong: far keys get almost no weight. Code with slope times position in bfloat16 makes near keys equal.
"""

import torch
from torch import Tensor, nn

BIAS_MAX = 8.0  # the slopes of 2^n heads end at 2^-BIAS_MAX (logit per position)
FORM = "symmetric"
LEARNED = False
FLEX = False
SEQ_DIM = 2


class ALiBi(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=ALiBi(num_heads)(q, k) + mask)."""

    def __init__(self, num_heads: int, head_dim: int = 64) -> None:
        super().__init__()
        top = 2 ** num_heads.bit_length()  # 12 heads: the slopes of 8 heads, then every other slope of 16
        self.slopes = [2 ** (-BIAS_MAX * h / top) for h in (*range(2, top + 1, 2), *range(1, 2 * num_heads - top, 2))]
        if LEARNED:
            self.log_slopes = nn.Parameter(torch.tensor(self.slopes).log())
        if FORM == "falcon":  # Falcon scales the logits after it adds the bias
            self.head_dim = head_dim
        if FLEX and not LEARNED:
            self.top = top

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, key_position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the bias [.., heads, T, S] for ids [.., T]. A mask to add is float: 0 where allowed, else -inf."""
        if SEQ_DIM == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        if key_position_ids is None:
            key_position_ids = torch.arange(k.shape[2], device=q.device) if position_ids is None else position_ids
        ids = key_position_ids[..., k.shape[2] - q.shape[2] :] if position_ids is None else position_ids
        delta = (ids[..., :, None] - key_position_ids[..., None, :]).unsqueeze(-3)  # [1 or batch, 1, T, S]
        if delta.shape[-2:] != (q.shape[2], k.shape[2]):
            raise ValueError(f"expected ids of {q.shape[2]} queries and key_position_ids of {k.shape[2]} keys, or none")
        if FORM == "asymmetric":  # keys behind the query count half a position nearer
            delta = delta - 0.5 * (delta > 0)
        if LEARNED:
            slopes = self.log_slopes.to(torch.promote_types(self.log_slopes.dtype, torch.float32)).exp()[:, None, None]
            if FORM == "falcon":
                slopes = slopes * self.head_dim**-0.5
            return (-slopes * delta.abs()).to(q.dtype)
        else:
            if FORM == "falcon":
                delta = delta * self.head_dim**-0.5
            return (-torch.tensor(self.slopes, device=q.device)[:, None, None] * delta.abs()).to(q.dtype)

    if FLEX:

        def score_mod(self, offset: int = 0):
            """Return score_mod of flex_attention, which adds the bias of queries at offset, offset + 1 and so on."""
            if LEARNED:
                slopes = self.log_slopes.to(torch.promote_types(self.log_slopes.dtype, torch.float32)).exp()
            else:
                top = self.top
            if FORM == "falcon":
                head_dim = self.head_dim

            def add_bias(score: Tensor, batch: Tensor, head: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                delta = offset + q_idx - kv_idx
                if FORM == "asymmetric":
                    distance = delta.abs() - 0.5 * (delta > 0)
                else:
                    distance = delta.abs()
                if LEARNED:
                    slope = slopes[head]
                else:
                    # by a formula: a tensor of slopes would have to be on the device of the scores
                    step = torch.where(head < top // 2, 2 * head + 2, 2 * head + 1 - top) / top
                    slope = torch.exp2(-BIAS_MAX * step)
                if FORM == "falcon":
                    slope = slope * head_dim**-0.5
                return score - (slope * distance).to(score.dtype)

            return add_bias


EXPECTED = ()

if __name__ == "__main__":
    alibi, x = ALiBi(num_heads=2, head_dim=8), torch.zeros(1, 2, 3, 8)
    if SEQ_DIM == 1:
        x = x.transpose(1, 2)
    if LEARNED:
        alibi.log_slopes.data = 0.1 * torch.arange(2.0).cos()
    torch.testing.assert_close(alibi(x, x, torch.tensor([2, 7, 40]))[:, 2].flatten(), torch.tensor(EXPECTED))
