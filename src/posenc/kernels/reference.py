"""The reference kernel: it defines the results of the others, and returns attention weights."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import checks
from posenc.encoding.biases import Bias, ValueVectors, product
from posenc.encoding.keys import Keys
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask, check_added_mask, check_mask
from posenc.tokens.positions import Positions


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute attention step by step: softmax(scale * q k^T + mask) v, and the weights.

    q [B, H, T, D], k [B, KV, S, D], v [B, KV, S, E], where KV divides H; the output is [B, H, T, E] and the weights
    [B, H, T, S], as applied (after dropout). `scale` defaults to D^-1/2 (unitless). `mask` broadcasts to [B, H, T, S]:
    boolean (true = may see) or floating (added to the scaled logits). A row that sees no key gives zeros, never NaN.
    Logits are computed in float32 at least.

    Raises ValueError when the shapes do not fit or the mask is neither boolean nor floating.
    Limit: the whole [B, H, T, S] matrix is in memory.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.

    >>> q = torch.zeros(1, 1, 1, 4)
    >>> output, weights = scaled_dot_product_attention(q, torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 2, 4))
    >>> weights
    tensor([[[[0.5000, 0.5000]]]])
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        checks.floating(name, x)
    mask = None if mask is None else checks.tensor("mask", mask)
    checks.one_device(q=q, k=k, v=v, mask=mask)
    if k.dtype != q.dtype:
        raise ValueError(f"q and k must have one dtype, got {q.dtype} and {k.dtype}; cast one of them with .to()")
    k, v = fit_heads(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else checks.number("scale", scale)
    logits = product(q, k) * scale
    visible = None
    if mask is not None:
        check_mask(mask, q.shape[2], k.shape[2], q.shape[0], q.shape[1])
        check_added_mask(mask)
        visible = mask if mask.dtype == torch.bool else mask != -math.inf
        logits = logits if mask.dtype == torch.bool else logits + torch.where(visible, mask, 0.0)
    weights = softmax_where(logits, visible)
    weights = F.dropout(weights, checks.share("dropout", dropout)).to(v.dtype)
    return weights @ v, weights


def why_not(request: Request) -> None:
    """Return None: this kernel serves every request."""


def attend(
    biases: Sequence[Bias],
    q: Tensor,
    at: Positions,
    keys: Keys,
    mask: Mask,
    *,
    scale: float,
    dropout: float,
    need_weights: bool,
    sums: list[Tensor] | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with biases evaluated on the whole grid of queries and keys."""
    for bias in biases:
        if isinstance(bias, ValueVectors):
            return bias.by_pairs()
    logits, visible = logits_on_grid(biases, q, at, keys, scale=scale), mask.allowed(at, keys.at)
    if sums is not None:
        # Over visible keys alone; -inf for an empty row.
        log_sums = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).logsumexp(-1)
        sums.append(log_sums.masked_fill(~visible.any(-1), -math.inf))
    output, dropped_weights = take_values(softmax_where(logits, visible, sinks), keys.v, dropout=dropout)
    return output, dropped_weights if need_weights else None


def logits_on_grid(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, *, scale: float) -> Tensor:
    """Return the scaled logits [B, H, T, S] with biases, in float32 at least."""
    check_heads(q, keys.k, keys.v)
    logits = product(q, keys.k) * scale
    for bias in biases:
        logits = bias.added_to(logits)
    return logits


def take_values(weights: Tensor, v: Tensor, *, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of v [B, KV, S, E], and the weights after dropout. They are [B, H, T, S] in v's dtype."""
    v = v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    dropped_weights = F.dropout(weights, dropout).to(v.dtype)
    return dropped_weights @ v, dropped_weights


def softmax_where(logits: Tensor, visible: Tensor | None, sinks: Tensor | None = None) -> Tensor:
    """Return the softmax over visible keys; an empty row gives zeros, and zero gradients.

    Sinks [H], one logit of each head, take part in the softmax, and are left out of the result.
    """
    if sinks is not None:
        of_sinks = sinks.to(logits.dtype)[:, None, None].expand(*logits.shape[:3], 1)
        visible = None if visible is None else F.pad(visible, (0, 1), value=True)
        return softmax_where(torch.cat((logits, of_sinks), -1), visible)[..., :-1]
    if visible is None:
        return logits.softmax(-1)
    # A finite lowest value instead of -inf keeps an empty row, and its gradient, free of NaN.
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~visible, lowest).softmax(-1).masked_fill(~visible, 0.0)


def fit_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return k and v with each head repeated for the query heads that share it. Raises ValueError as `check_heads`."""
    check_heads(q, k, v)
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return k, v
    return k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad q, k and v with zeros to one width, which PyTorch's fused attention on the CPU needs."""
    width = max(q.shape[-1], v.shape[-1])
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    return q, k, v


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError unless queries [B, H, T, D], keys [B, KV, S, D] and values [B, KV, S, E] fit."""
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(
            f"q, k, v have shape [batch, heads, tokens, channels], got {[list(t.shape) for t in (q, k, v)]}"
        )
    if k.shape[:3] != v.shape[:3] or q.shape[-1] != k.shape[-1] or q.shape[0] != k.shape[0]:
        raise ValueError(
            f"k and v need the same batch, heads and tokens, and q and k the same batch and channels, "
            f"got q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        )
    if k.shape[2] < 1 or q.shape[2] < 1:
        raise ValueError(f"attention needs at least one query and one key, got {q.shape[2]} and {k.shape[2]}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"the key heads must divide the query heads, got {k.shape[1]} and {q.shape[1]}")
