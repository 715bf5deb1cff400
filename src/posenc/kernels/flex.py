"""Attention through PyTorch's FlexAttention: one fused GPU kernel of an encoding's definition and the mask.

On a GPU it is compiled, and materialises no matrix of queries and keys, forwards or backwards: a bias of the distance
is a table with one number for each distance, and any other is the encoding's `score_mod`. Only a bias at coordinates of
unknown range is evaluated for pairs first, in blocks of queries. On the CPU it only checks definitions: it materialises
logits, is several times slower, and has no backward pass. Under torch.compile it is part of the caller's graph.
"""

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, BranchedLogits, Factored
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, at_token, chain_mods, table_entry
from posenc.kernels.device import device_of
from posenc.kernels.log_sums import merge_parts
from posenc.kernels.reference import fit_heads
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once
from posenc.tokens.tracing import COMPILES_LAYERS

MIN_CHANNELS = 16
"""Minimum channels of a head on a GPU."""


def why_not(request: Request) -> str | None:
    """Return why FlexAttention cannot serve, or None."""
    if not COMPILES_LAYERS:
        return f"FlexAttention serves from torch 2.9 on, got {torch.__version__}; use kernel='auto'"
    if (reason := request.why_not_fused("flex")) is not None:
        return reason
    if request.dropout:
        return f"FlexAttention has no dropout, got {request.dropout}; use another kernel, or dropout=0"
    q, device = request.q, request.device
    if device == "cuda":
        if request.encoding.queries_together:
            return f"what {request.encoding} computes for each pair does not fuse; use kernel='auto' or 'sdpa'"
        if q is not None and (q.dtype == torch.float64 or q.shape[-1] < MIN_CHANNELS):
            return (
                f"FlexAttention on a GPU takes heads of {MIN_CHANNELS} channels or more in single or half precision, "
                f"got {q.shape[-1]} in {q.dtype}; use kernel='auto' or 'sdpa'"
            )
        return None
    if q is not None and torch.is_grad_enabled():
        if q.requires_grad or any(parameter.requires_grad for parameter in request.encoding.parameters()):
            return (
                f"FlexAttention has no backward pass on '{device}', and the queries or the encoding want "
                f"gradients; use kernel='auto', a CUDA device, or torch.no_grad()"
            )
    if (request.sums or request.sinks) and q is not None and torch.compiler.is_compiling():
        return (
            f"FlexAttention compiled for '{device}' does not return the sums of its exponentials, which sinks "
            f"take; use kernel='auto', a CUDA device, or no torch.compile"
        )
    return None


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
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with the closures of biases, in the blocks of logits that the mask leaves.

    An empty row gives zeros. Key heads may be fewer than query heads, and are not repeated.
    """
    assert not (need_weights or dropout), "why_not('flex') forbids this"
    if q.shape[0] == 0:
        # FlexAttention refuses an empty batch.
        k, v = fit_heads(q, keys.k, keys.v)
        if sums is not None:
            sums.append(q.new_zeros(q.shape[:3], dtype=torch.float32))
        return q @ k.transpose(-1, -2) @ v, None
    if not torch.is_grad_enabled():
        # FlexAttention on a CPU refuses tensors that require gradients, even under no_grad.
        q, k, v = q.detach(), keys.k.detach(), keys.v.detach()
    else:
        k, v = keys.k, keys.v
    dtype = torch.promote_types(q.dtype, torch.float32)
    branches = next((bias for bias in biases if isinstance(bias, BranchedLogits)), None)
    mods = [bias.fused_closure(dtype) for bias in biases if not isinstance(bias, (Factored, BranchedLogits))]
    products = [bias for bias in biases if isinstance(bias, Factored)]
    name = "" if torch.compiler.is_compiling() else compile_key(biases)
    attend_part = partial(call_flex_attention, v=v, modify=chain_mods(mods), scale=scale, name=name)
    if branches is None:
        blocks, wants_sums = block_mask(mask, at, keys.at), sums is not None
        output, total = attend_part(*with_channels(q, k, products, scale), block_mask=blocks, sums=wants_sums)
    else:
        parts = []
        for number, (part_q, part_k) in enumerate(((q, k), *((branch.q, branch.k) for branch in branches.branches))):
            blocks = block_mask(mask, at, keys.at, branches, number)
            parts.append(attend_part(*with_channels(part_q, part_k, products, scale), block_mask=blocks, sums=True))
        output, total = merge_parts(parts)
    if sums is not None:
        sums.append(total)
    return output.to(q.dtype), None


def with_channels(q: Tensor, k: Tensor, products: Sequence[Factored], scale: float) -> tuple[Tensor, Tensor]:
    """Return queries and keys with the vectors of dot products as extra channels, rounded to their dtype."""
    for bias in products:
        of_queries, of_keys = bias.factors()
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        q = torch.cat((q, (of_queries / scale).to(q.dtype).expand(*q.shape[:3], -1)), -1)
        k = torch.cat((k, of_keys.to(k.dtype).expand(*k.shape[:3], -1)), -1)
    return q, k


def call_flex_attention(
    q: Tensor, k: Tensor, v: Tensor, modify: ScoreMod | None, block_mask: Any, scale: float, name: str, sums: bool
) -> tuple[Tensor, Any]:
    """Call PyTorch's function; return the output and, if `sums`, the log-sum-exp, else None."""
    # A late import: it is slow.
    from torch.nn.attention.flex_attention import AuxRequest

    result = flex_attention(device_of(q), name)(
        q,
        k,
        v,
        score_mod=in_float32(modify),
        block_mask=block_mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True) if sums else None,
    )
    return (result[0], result[1].lse) if sums else (result, None)


def compile_key(biases: Sequence[Bias]) -> str:
    """Return the name of a compiled function: the types of its biases."""
    return "_".join(["attention", *(f"{type(bias).__name__}_{type(bias.module).__name__}" for bias in biases)])


def flex_attention(device: str, name: str):
    """Return PyTorch's function, compiled on a GPU unless the caller's graph is compiled."""
    # A late import: it is slow.
    from torch.nn.attention import flex_attention as module

    # On a CPU torch warns once that it is slow.
    return compiled_attention(name) if device == "cuda" and not torch.compiler.is_compiling() else module.flex_attention


@functools.cache
def compiled_attention(name: str):
    """Return PyTorch's function compiled for one name: torch.compile gives up on a function after 8 closures."""
    from torch.nn.attention import flex_attention as module

    def attention(*tensors: Any, **options: Any) -> Any:
        return cast(Any, module).flex_attention(*tensors, **options)

    # torch.compile caches by the code object of a function.
    attention.__code__ = attention.__code__.replace(co_name=name)
    return torch.compile(attention)


def in_float32(modify: ScoreMod | None) -> ScoreMod | None:
    """Return the closure on scores in float32 at least, as they are at run time.

    PyTorch traces it with a score in the dtype of the queries, to which a bias would be rounded.
    """
    if modify is None:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return modify(score.to(torch.promote_types(score.dtype, torch.float32)), b, h, i, j)

    return score_mod


def block_mask(
    mask: Mask, at: Positions, keys_at: Positions, branches: BranchedLogits | None = None, number: int = 0
) -> Any:
    """Return the BlockMask: the mask as a closure, and the blocks of 128 x 128 logits to skip.

    number  of the branch whose pairs are visible; 0: the pairs of no branch
    """
    if branches is None and mask.sees_everything(at, keys_at):
        return None

    def make() -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        # One row of the batch and one head broadcast to all.
        rows, heads = max(at.order.shape[0], keys_at.order.shape[0]), 1
        if mask.tensor is not None:
            rows, heads = max(rows, with_four_axes(mask.tensor).shape[0]), with_four_axes(mask.tensor).shape[1]
        visible = mask_closure(mask, at, keys_at, branches, number)
        return create_block_mask(visible, rows, heads, at.tokens, keys_at.tokens, at.order.device)

    if mask.tensor is not None or at is not keys_at:
        return make()
    # All layers of a model share it.
    part = None if branches is None else (branches.name, number)
    return once(at, ("block mask", mask.causal, mask.window, mask.prefix, part), make)


def mask_closure(
    mask: Mask, at: Positions, keys_at: Positions, branches: BranchedLogits | None, number: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return Mask.allowed, within a branch, as a closure (b, h, i, j) -> boolean, elementwise in its indices."""
    documents = at.document, keys_at.document
    tensor = None if mask.tensor is None else with_four_axes(mask.checked_tensor(at, keys_at))

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        visible = mask.visible_by_order(table_entry(at.order, b, i), table_entry(keys_at.order, b, j))
        if documents[0] is not None and documents[1] is not None:
            visible = visible & (table_entry(documents[0], b, i) == table_entry(documents[1], b, j))
        if tensor is not None:
            value = table_entry(tensor, b, h, i, j)
            visible = visible & (value if tensor.dtype == torch.bool else value != -math.inf)
        if branches is not None:
            m, n = at_token(at.coords[..., 0], b, i), at_token(keys_at.coords[..., 0], b, j)
            visible = visible & (branches.branch_of(m, n) == number)
        return visible

    return mask_mod


def with_four_axes(mask: Tensor) -> Tensor:
    return mask[(None,) * (4 - mask.dim())]
