"""Forgetting attention (FoX): add to each logit the sum of the log forget gates of the tokens after the key.

Source: Lin et al. 2025, arXiv:2503.02130, section 3. The sum ends with the query's own gate.
Where it goes wrong: the bias is added after the scaling by 1/sqrt(head_dim). Decoding without the gates of all cached
tokens gives no error: [batch, heads, 1, 1] broadcasts over the keys. There is one gate per token; a gate per query and
key is CoPE. After a hundred thousand tokens a float32 sum has steps of 0.008.
"""

import torch
from torch import Tensor, nn

START = 0.0  # the initial logit of the gates: sigmoid(0) = 0.5 per token, sigmoid(5) = 0.993
STD = 0.02  # of the initial weights


class ForgettingBias(nn.Module):
    """nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias(x) + causal_mask).

    In decoding, cache the log gates beside k and v: bias(x, past_log_gates), then
    past_log_gates = torch.cat((past_log_gates, bias.log_gates(x)), dim=-1).
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(STD * torch.randn(num_heads, d_model))
        self.offset = nn.Parameter(START * torch.ones(num_heads))

    def forward(self, x: Tensor, past_log_gates: Tensor | None = None) -> Tensor:
        """Return the bias [batch, heads, T, cached tokens + T] for the layer's input x [batch, T, d_model].

        A mask to add is float: 0 where allowed, else -inf.
        """
        log_gates = self.log_gates(x)
        if past_log_gates is not None:
            log_gates = torch.cat((past_log_gates, log_gates), dim=-1)
        sums = log_gates.cumsum(-1, dtype=torch.float32 if x.device.type == "mps" else torch.float64)
        bias = sums[..., sums.shape[-1] - x.shape[1] :, None] - sums[..., None, :]
        return bias.clamp(max=0.0).to(x.dtype)  # 0 for keys after the query

    def log_gates(self, x: Tensor) -> Tensor:
        """Return ln sigmoid(w . x + b) of each token [batch, heads, T], to be cached beside k and v."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):  # half precision would round an almost open gate to 1
            logits = nn.functional.linear(x.to(dtype), self.weight.to(dtype), self.offset.to(dtype))
            return nn.functional.logsigmoid(logits).mT


EXPECTED = ()

if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 3, 16)
    fox = ForgettingBias(d_model=16, num_heads=2).double()
    for weight in fox.parameters():
        weight.data = 0.1 * torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight)
    bias = fox(x[:, 2:], fox.log_gates(x[:, :2]))  # as in decoding
    torch.testing.assert_close(bias.flatten(), torch.tensor(EXPECTED, dtype=torch.float64))
