"""Attention through PyTorch's fused scaled_dot_product_attention; plain causal attention goes without any mask."""

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.biases import Bias, Branched, ByDistance, total
from posenc.encoding.keys import Keys
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.device import device_of
from posenc.kernels.reference import fit_heads, one_width
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


def why_not(request: Request) -> str | None:
    """Why PyTorch's fused attention cannot serve, or None."""
    if request.sums:
        return "sdpa does not return the sums of its exponentials; use kernel='auto', 'reference' or 'flex'"
    return request.against("sdpa")


def is_fastest(request: Request) -> bool:
    """Whether a call is one of PyTorch's own without any matrix of all pairs, or with one mask of few."""
    q, inputs = request.q, request.inputs
    if q is None or inputs is None:
        return False
    if q.shape[2] == 1 or q.shape[0] == 0:
        return True
    at, keys_at, mask = inputs.at, inputs.keys_at, inputs.mask
    if request.device == "cuda":
        plain = mask.is_plain_causal(at, keys_at) or mask.sees_everything(at, keys_at)
        few = at.tokens * keys_at.tokens < SIZES.pairs_to_fuse
        return few or (plain and not inputs.biases and not request.sinks)
    if inputs.biases or request.sinks:
        pairs = at.tokens * keys_at.tokens
        # A graph would be tied to the lengths that were compared.
        if request.sinks or torch.compiler.is_compiling() or pairs > SIZES.pairs_of_a_grid:
            return False
        if any(isinstance(bias, Branched) for bias in inputs.biases):
            return False
        if pairs * q.shape[0] * q.shape[1] <= SIZES.pairs_of_all_heads:
            return True
        in_a_row = at.contiguous and keys_at.contiguous
        if pairs <= SIZES.pairs_of_a_bias and (not in_a_row or before_distances(*inputs) is not None):
            return True
        on_axes = all(isinstance(bias, ByDistance) and bias.axes > 1 for bias in inputs.biases)
        return on_axes and mask.sees_everything(at, keys_at)
    if mask.is_plain_causal(at, keys_at) or mask.sees_everything(at, keys_at):
        return True
    return mask.keys_before(at, keys_at) is not None and at.tokens * keys_at.tokens <= SIZES.pairs_of_a_mask


def before_distances(biases: Sequence[Bias], at: Positions, keys_at: Positions, mask: Mask) -> int | None:
    """The n of which it is certain that query i sees the keys 0..i + n, where all biases are of distances in a row."""
    if torch.compiler.is_compiling():
        return None
    for bias in biases:
        if not isinstance(bias, ByDistance) or bias.encoding.axes > 1:
            return None
    return mask.keys_before(at, keys_at)


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
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the bias as SDPA's mask, a boolean mask where there is no bias, and none where none is needed."""
    assert not need_weights, "why_not('sdpa') forbids this"
    k, v = fit_heads(q, keys.k, keys.v)
    width, told = v.shape[-1], (at, keys.at, mask, sinks)
    # On the CPU other widths of keys and values are attended to by way of a matrix of all pairs.
    if q.shape[-1] == width or device_of(q) != "cpu":
        return attended(biases, q, k, v, *told, scale=scale, dropout=dropout), None
    out = attended(biases, *one_width(q, k, v), *told, scale=scale, dropout=dropout)
    return out[..., :width], None


def attended(
    biases: Sequence[Bias],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: Positions,
    keys_at: Positions,
    mask: Mask,
    sinks: Tensor | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """One call of PyTorch's function, for as many heads of keys as of queries."""
    # A bias of a thousand positions has too many values for bfloat16.
    dtype = torch.promote_types(q.dtype, torch.float32)
    before = before_distances(biases, at, keys_at, mask) if biases and sinks is None and at.tokens > 1 else None
    if before is not None:
        grids = [bias.in_sight(before, dtype) for bias in biases if isinstance(bias, ByDistance)]
        return masked(q, k, v, functools.reduce(torch.add, grids), scale=scale, dropout=dropout)
    bias = total(biases, dtype) if biases else None
    if sinks is not None:
        # One more key, which every query sees and which has no value: no row is empty.
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        seen = torch.zeros((), dtype=dtype, device=q.device) if bias is None else bias
        seen = seen.masked_fill(~mask.allowed(at, keys_at), -math.inf)
        rows = torch.broadcast_shapes(seen.shape[:3], (1, *q.shape[1:3]))
        of_sinks = sinks.to(dtype)[:, None, None].expand(*rows, 1)
        whole = torch.cat((seen.expand(*rows, -1), of_sinks), -1)
        return masked(q, k, v, whole, scale=scale, dropout=dropout)
    if bias is None and mask.is_plain_causal(at, keys_at):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, dropout_p=dropout)
    if mask.sees_everything(at, keys_at):
        return masked(q, k, v, bias, scale=scale, dropout=dropout)
    allowed = mask.allowed(at, keys_at)
    whole = allowed if bias is None else bias.masked_fill(~allowed, -math.inf)
    if mask.keys_before(at, keys_at) is not None or (mask.given is None and at is keys_at and at.contiguous):
        # Every token sees a key, so there is no empty row to look for.
        return masked(q, k, v, whole, scale=scale, dropout=dropout)
    # SDPA gives NaN for a row that sees nothing: such a row looks at everything, and its output is dropped.
    empty = ~allowed.any(-1, keepdim=True)
    whole = whole | empty if bias is None else whole.masked_fill(empty, 0.0)
    return masked(q, k, v, whole, scale=scale, dropout=dropout).masked_fill(empty, 0.0)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, dropout: float) -> Tensor:
    """PyTorch's function under a boolean mask, or one that is added.

    On a GPU an added one is of the dtype of the queries: beside queries of half precision cuDNN's kernel, which PyTorch
    prefers on Hopper, reads a float32 one as numbers of their width (up to torch 2.13: pytorch/pytorch#191612), and
    others refuse. Each row's largest is taken off before, which the softmax does not see: what counts is near 0.
    """
    if mask is not None and mask.dtype not in (torch.bool, q.dtype) and device_of(q) == "cuda":
        mask = (mask - mask.detach().amax(-1, keepdim=True)).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, dropout_p=dropout)
