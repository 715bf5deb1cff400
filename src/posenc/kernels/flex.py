"""Attention through PyTorch's FlexAttention: one fused GPU kernel made of an encoding's own definition and the mask.

On a GPU it is compiled, and holds no matrix of queries and keys, forwards or backwards: a bias of the distance is a
table of as many numbers as there are distances, and any other is the encoding's `score_mod`. Only a bias of fractional
coordinates or several axes, and one that does not fuse, is spread over all pairs before. On the CPU it only shows that
the definitions fit: it materialises the logits, is several times slower than any other kernel, and has no backward
pass. Under torch.compile it is part of the caller's graph on either.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, ByDistance, Dense, Pairs, distances_between
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, entry, in_turn, looked_up
from posenc.kernels.device import device_of
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
    # Imported when it is used: it takes its time.
    from torch.nn.attention.flex_attention import AuxRequest

    found = flex_attention(device_of(q), kinds_of(biases))(
        q,
        k,
        v,
        score_mod=in_float32(in_turn([fused(bias, q) for bias in biases])),
        block_mask=block_mask(mask, at, keys.at),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=None if sums is None else AuxRequest(lse=True),
    )
    if sums is None:
        return found, None
    out, beside = found
    sums.append(beside.lse)
    return out, None


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


def fused(bias: Bias, q: Tensor) -> ScoreMod:
    """The closure of a bias in which nothing is left to compute but sums and entries of tables.

    A fused kernel takes no constant tensors and no matrix products, so a bias of the distance is evaluated before.
    """
    if isinstance(bias, Dense) or (isinstance(bias, Pairs) and bias.fuses):
        return bias.closure()
    dtype = torch.promote_types(q.dtype, torch.float32)
    distances = distances_between(bias.at, bias.keys_at) if isinstance(bias, ByDistance) else None
    if distances is None or not isinstance(bias, ByDistance):
        return looked_up(bias.dense(dtype))
    lowest, highest = distances
    at, keys_at = bias.at, bias.keys_at
    table = bias.along(torch.arange(lowest, highest + 1, device=q.device)).to(dtype)
    m, n = at.coords[..., 0] - lowest, keys_at.coords[..., 0]

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table[h, entry(m, b, i) - entry(n, b, j)].to(score.dtype)

    return score_mod


def block_mask(mask: Mask, at: Positions, keys_at: Positions) -> Any:
    """FlexAttention's own form of the mask: who may see whom, and which blocks of 128 x 128 logits are left out."""
    if mask.sees_everything(at, keys_at):
        return None

    def make() -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        # A mask [B, H, T, S] of one row of the batch and one head stands for all.
        rows, heads = max(at.order.shape[0], keys_at.order.shape[0]), 1
        if mask.given is not None:
            rows, heads = max(rows, four_axes(mask.given).shape[0]), four_axes(mask.given).shape[1]
        return create_block_mask(rule(mask, at, keys_at), rows, heads, at.tokens, keys_at.tokens, at.order.device)

    if mask.given is not None or at is not keys_at:
        return make()
    # Every layer of a model asks for the same one.
    return once(at, ("block mask", mask.causal, mask.window, mask.prefix), make)


def rule(mask: Mask, at: Positions, keys_at: Positions) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Mask.allowed as a closure (b, h, i, j) -> boolean, elementwise in its index tensors."""
    documents = at.document, keys_at.document
    given = None if mask.given is None else four_axes(mask.fitting(at, keys_at))

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = mask.by_order(entry(at.order, b, i), entry(keys_at.order, b, j))
        if documents[0] is not None and documents[1] is not None:
            allowed = allowed & (entry(documents[0], b, i) == entry(documents[1], b, j))
        if given is not None:
            value = entry(given, b, h, i, j)
            allowed = allowed & (value if given.dtype == torch.bool else value != -math.inf)
        return allowed

    return mask_mod


def four_axes(given: Tensor) -> Tensor:
    return given[(None,) * (4 - given.dim())]
