"""Attention through PyTorch's FlexAttention: one fused GPU kernel made of an encoding's own definition and the mask.

On a GPU it is compiled, and holds no matrix of queries and keys, forwards or backwards: a bias of the distance is a
table of as many numbers as there are distances, and any other is the encoding's `score_mod`. Only a bias at coordinates
whose range nothing tells is spread over pairs before, of some queries at a time. On the CPU it only shows that the
definitions fit: it materialises the logits, is several times slower than any other kernel, and has no backward pass.
Under torch.compile it is part of the caller's graph on either.
"""

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, Branched, Factored
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, at_token, entry, in_turn
from posenc.kernels.device import device_of
from posenc.kernels.log_sums import merged
from posenc.kernels.reference import fit_heads
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once
from posenc.tokens.watched import COMPILES

NARROWEST = 16
"""How many channels a head has at least where it is compiled."""


def why_not(request: Request) -> str | None:
    """Why FlexAttention cannot serve, or None."""
    if not COMPILES:
        return f"FlexAttention serves from torch 2.9 on, got {torch.__version__}; use kernel='auto'"
    if (reason := request.against("flex")) is not None:
        return reason
    if request.dropout:
        return f"FlexAttention has no dropout, got {request.dropout}; use another kernel, or dropout=0"
    q, device = request.q, request.device
    if device == "cuda":
        if request.encoding.queries_together:
            return f"what {request.encoding} computes for each pair does not fuse; use kernel='auto' or 'sdpa'"
        if q is not None and (q.dtype == torch.float64 or q.shape[-1] < NARROWEST):
            return (
                f"FlexAttention on a GPU takes heads of {NARROWEST} channels or more in single or half precision, got "
                f"{q.shape[-1]} in {q.dtype}; use kernel='auto' or 'sdpa'"
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
    """Attention with the closures of biases on every logit, in the blocks of logits that the mask leaves.

    A row that may see nothing gives zeros. Key heads may be fewer than query heads; nothing is repeated for them.
    """
    assert not (need_weights or dropout), "why_not('flex') forbids this"
    if q.shape[0] == 0:
        # FlexAttention refuses a batch without rows, for which there is nothing to compute.
        k, v = fit_heads(q, keys.k, keys.v)
        if sums is not None:
            sums.append(q.new_zeros(q.shape[:3], dtype=torch.float32))
        return q @ k.transpose(-1, -2) @ v, None
    if not torch.is_grad_enabled():
        # FlexAttention refuses leaves that want gradients on a CPU even where none are taken.
        q, k, v = q.detach(), keys.k.detach(), keys.v.detach()
    else:
        k, v = keys.k, keys.v
    dtype = torch.promote_types(q.dtype, torch.float32)
    branched = next((bias for bias in biases if isinstance(bias, Branched)), None)
    mods = [bias.fused(dtype) for bias in biases if not isinstance(bias, (Factored, Branched))]
    products = [bias for bias in biases if isinstance(bias, Factored)]
    name = "" if torch.compiler.is_compiling() else kinds_of(biases)
    fused = partial(attended, v=v, modify=in_turn(mods), scale=scale, name=name)
    if branched is None:
        seen, wants_sums = block_mask(mask, at, keys.at), sums is not None
        out, total = fused(*with_channels(q, k, products, scale), block_mask=seen, sums=wants_sums)
    else:
        parts = []
        for number, (asked, met) in enumerate(((q, k), *((branch.q, branch.k) for branch in branched.branches))):
            seen = block_mask(mask, at, keys.at, branched, number)
            parts.append(fused(*with_channels(asked, met, products, scale), block_mask=seen, sums=True))
        out, total = merged(parts)
    if sums is not None:
        sums.append(total)
    return out.to(q.dtype), None


def with_channels(q: Tensor, k: Tensor, products: Sequence[Factored], scale: float) -> tuple[Tensor, Tensor]:
    """Queries and keys with the vectors of dot products as more channels, rounded to their dtype."""
    for bias in products:
        of_queries, of_keys = bias.factors()
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        q = torch.cat((q, (of_queries / scale).to(q.dtype).expand(*q.shape[:3], -1)), -1)
        k = torch.cat((k, of_keys.to(k.dtype).expand(*k.shape[:3], -1)), -1)
    return q, k


def attended(
    q: Tensor, k: Tensor, v: Tensor, modify: ScoreMod | None, block_mask: Any, scale: float, name: str, sums: bool
) -> tuple[Tensor, Any]:
    """One call of PyTorch's function: the output and, if they are wanted, the logarithms of the sums, else None."""
    # Imported when it is used: it takes its time.
    from torch.nn.attention.flex_attention import AuxRequest

    out = flex_attention(device_of(q), name)(
        q,
        k,
        v,
        score_mod=in_float32(modify),
        block_mask=block_mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True) if sums else None,
    )
    return (out[0], out[1].lse) if sums else (out, None)


def kinds_of(biases: Sequence[Bias]) -> str:
    """What a call is compiled for: the kinds of its biases."""
    return "_".join(["attention", *(f"{type(bias).__name__}_{type(bias.module).__name__}" for bias in biases)])


def flex_attention(device: str, name: str):
    """PyTorch's function: compiled on a GPU, unless the caller's graph will be."""
    # Imported when it is used: it takes its time.
    from torch.nn.attention import flex_attention as module

    # On a CPU torch warns once that it is slow.
    return compiled(name) if device == "cuda" and not torch.compiler.is_compiling() else module.flex_attention


@functools.cache
def compiled(name: str):
    """PyTorch's function compiled for these: one function is compiled for eight kinds of closures, then no more."""
    from torch.nn.attention import flex_attention as module

    def attention(*given: Any, **options: Any) -> Any:
        return cast(Any, module).flex_attention(*given, **options)

    # What was compiled is kept by the code of a function.
    attention.__code__ = attention.__code__.replace(co_name=name)
    return torch.compile(attention)


def in_float32(modify: ScoreMod | None) -> ScoreMod | None:
    """The closure on scores in float32 at least, as they are when it runs.

    PyTorch writes it down with a score in the dtype of the queries: to that a bias would be rounded.
    """
    if modify is None:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return modify(score.to(torch.promote_types(score.dtype, torch.float32)), b, h, i, j)

    return score_mod


def block_mask(mask: Mask, at: Positions, keys_at: Positions, branched: Branched | None = None, number: int = 0) -> Any:
    """FlexAttention's own form of the mask: who may see whom, and which blocks of 128 x 128 logits are left out.

    number  of branches, of which one's pairs alone are seen; 0 for those of none
    """
    if branched is None and mask.sees_everything(at, keys_at):
        return None

    def make() -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        # A mask [B, H, T, S] of one row of the batch and one head stands for all.
        rows, heads = max(at.order.shape[0], keys_at.order.shape[0]), 1
        if mask.given is not None:
            rows, heads = max(rows, four_axes(mask.given).shape[0]), four_axes(mask.given).shape[1]
        allowed = rule(mask, at, keys_at, branched, number)
        return create_block_mask(allowed, rows, heads, at.tokens, keys_at.tokens, at.order.device)

    if mask.given is not None or at is not keys_at:
        return make()
    # Every layer of a model asks for the same one.
    part = None if branched is None else (branched.name, number)
    return once(at, ("block mask", mask.causal, mask.window, mask.prefix, part), make)


def rule(
    mask: Mask, at: Positions, keys_at: Positions, branched: Branched | None, number: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Mask.allowed, within a branch, as a closure (b, h, i, j) -> boolean, elementwise in its index tensors."""
    documents = at.document, keys_at.document
    given = None if mask.given is None else four_axes(mask.fitting(at, keys_at))

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = mask.by_order(entry(at.order, b, i), entry(keys_at.order, b, j))
        if documents[0] is not None and documents[1] is not None:
            allowed = allowed & (entry(documents[0], b, i) == entry(documents[1], b, j))
        if given is not None:
            value = entry(given, b, h, i, j)
            allowed = allowed & (value if given.dtype == torch.bool else value != -math.inf)
        if branched is not None:
            m, n = at_token(at.coords[..., 0], b, i), at_token(keys_at.coords[..., 0], b, j)
            allowed = allowed & (branched.branch_of(m, n) == number)
        return allowed

    return mask_mod


def four_axes(given: Tensor) -> Tensor:
    return given[(None,) * (4 - given.dim())]
