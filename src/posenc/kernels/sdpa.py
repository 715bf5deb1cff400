"""Attention through PyTorch's fused scaled_dot_product_attention; plain causal attention needs no mask tensor."""

import functools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encoding.biases import Bias, BranchedLogits, ByDistance, total
from posenc.encoding.keys import Keys
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.device import device_of
from posenc.kernels.reference import fit_heads, one_width
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


def why_not(request: Request) -> str | None:
    """Return why PyTorch's fused attention cannot serve, or None."""
    if request.sums:
        return "sdpa does not return the sums of its exponentials; use kernel='auto', 'reference' or 'flex'"
    return request.why_not_fused("sdpa")


def is_fastest(request: Request) -> bool:
    """Whether PyTorch's function is the fastest kernel: without a mask matrix, or with a small one."""
    q, inputs = request.q, request.inputs
    if q is None or inputs is None:
        return False
    if q.shape[2] == 1 or q.shape[0] == 0:
        return True
    at, keys_at, mask = inputs.at, inputs.keys_at, inputs.mask
    if request.device == "cuda":
        plain = mask.is_plain_causal(at, keys_at) or mask.sees_everything(at, keys_at)
        has_few_pairs = at.tokens * keys_at.tokens < SIZES.pairs_to_fuse
        return has_few_pairs or (plain and not inputs.biases and not request.sinks)
    if inputs.biases or request.sinks:
        pairs = at.tokens * keys_at.tokens
        # The comparison would tie a graph to these lengths.
        if request.sinks or torch.compiler.is_compiling() or pairs > SIZES.pairs_of_a_grid:
            return False
        if any(isinstance(bias, BranchedLogits) for bias in inputs.biases):
            return False
        if pairs * q.shape[0] * q.shape[1] <= SIZES.pairs_of_all_heads:
            return True
        in_a_row = at.contiguous and keys_at.contiguous
        if pairs <= SIZES.pairs_of_a_bias and (not in_a_row or keys_ahead_of_rows(*inputs) is not None):
            return True
        on_axes = all(isinstance(bias, ByDistance) and bias.axes > 1 for bias in inputs.biases)
        return on_axes and mask.sees_everything(at, keys_at)
    if mask.is_plain_causal(at, keys_at) or mask.sees_everything(at, keys_at):
        return True
    return mask.keys_before(at, keys_at) is not None and at.tokens * keys_at.tokens <= SIZES.pairs_of_a_mask


def keys_ahead_of_rows(biases: Sequence[Bias], at: Positions, keys_at: Positions, mask: Mask) -> int | None:
    """Return n if each query i certainly sees keys 0..i + n; else None. Biases must be of the distance alone."""
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
    """Compute attention with the bias as SDPA's mask, a boolean mask without bias, or none if not needed."""
    assert not need_weights, "why_not('sdpa') forbids this"
    k, v = fit_heads(q, keys.k, keys.v)
    width, rest = v.shape[-1], (at, keys.at, mask, sinks)
    # On the CPU, SDPA materialises all pairs if keys and values have different widths.
    if q.shape[-1] == width or device_of(q) != "cpu":
        return call_sdpa(biases, q, k, v, *rest, scale=scale, dropout=dropout), None
    output = call_sdpa(biases, *one_width(q, k, v), *rest, scale=scale, dropout=dropout)
    return output[..., :width], None


def call_sdpa(
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
    """Call PyTorch's function, for as many heads of keys as of queries."""
    # bfloat16 cannot represent a bias over a thousand positions.
    dtype = torch.promote_types(q.dtype, torch.float32)
    keys_ahead = keys_ahead_of_rows(biases, at, keys_at, mask) if biases and sinks is None and at.tokens > 1 else None
    if keys_ahead is not None:
        grids = [bias.in_sight(keys_ahead, dtype) for bias in biases if isinstance(bias, ByDistance)]
        return call_with_mask(q, k, v, functools.reduce(torch.add, grids), scale=scale, dropout=dropout)
    bias = total(biases, dtype) if biases else None
    if sinks is not None:
        # The sink is one more key, visible to every query, with value 0: no row is empty.
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        logits = torch.zeros((), dtype=dtype, device=q.device) if bias is None else bias
        logits = logits.masked_fill(~mask.allowed(at, keys_at), -math.inf)
        rows = torch.broadcast_shapes(logits.shape[:3], (1, *q.shape[1:3]))
        of_sinks = sinks.to(dtype)[:, None, None].expand(*rows, 1)
        full_mask = torch.cat((logits.expand(*rows, -1), of_sinks), -1)
        return call_with_mask(q, k, v, full_mask, scale=scale, dropout=dropout)
    if bias is None and mask.is_plain_causal(at, keys_at):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, dropout_p=dropout)
    if mask.sees_everything(at, keys_at):
        return call_with_mask(q, k, v, bias, scale=scale, dropout=dropout)
    visible = mask.allowed(at, keys_at)
    full_mask = visible if bias is None else bias.masked_fill(~visible, -math.inf)
    if mask.keys_before(at, keys_at) is not None or (mask.tensor is None and at is keys_at and at.contiguous):
        # Every token sees a key, so no row is empty.
        return call_with_mask(q, k, v, full_mask, scale=scale, dropout=dropout)
    # SDPA gives NaN for an empty row: let it see everything, and set its output to 0.
    empty = ~visible.any(-1, keepdim=True)
    full_mask = full_mask | empty if bias is None else full_mask.masked_fill(empty, 0.0)
    return call_with_mask(q, k, v, full_mask, scale=scale, dropout=dropout).masked_fill(empty, 0.0)


def call_with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, dropout: float) -> Tensor:
    """Call PyTorch's function with a boolean or floating mask.

    On a GPU a floating mask gets the dtype of the queries: with half precision queries cuDNN's kernel, which PyTorch
    prefers on Hopper, misreads a float32 mask (up to torch 2.13: pytorch/pytorch#191612), and others refuse it. Each
    row's maximum is subtracted first, which the softmax ignores, so that rounding is finest for the largest weights.
    """
    if mask is not None and mask.dtype not in (torch.bool, q.dtype) and device_of(q) == "cuda":
        mask = (mask - mask.detach().amax(-1, keepdim=True)).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, dropout_p=dropout)
