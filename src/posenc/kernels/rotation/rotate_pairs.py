"""The rotation of channel pairs by given angles: the operator behind every rotary encoding.

`turned` is its readable form, and defines what is right. `rotate_pairs` computes the same thing faster: compiled code
on the CPU (rotate_pairs.c), Triton on a GPU (rotate_pairs_triton.py), and PyTorch's own operators where neither is.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.kernels.device import device_of
from posenc.kernels.rotation import native, rotate_pairs_triton
from posenc.tokens.watched import is_exporting, is_watched

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""The dtypes that the compiled code turns, in its own order."""

HALF_PRECISION = TYPES[2:]


def rotation_dtype(x: Tensor) -> torch.dtype:
    """The dtype to rotate x in: more exact than its own, so that the result is off by its one rounding."""
    return torch.float32 if x.dtype in HALF_PRECISION or x.is_mps else torch.float64


def turned(x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, inverse: bool = False) -> Tensor:
    """The pairs of the first 2 P channels of x [..., T, D] rotated, the other channels as they are.

    (a, b) -> (a cos - b sin, b cos + a sin), with the sines negated for the inverse; cos and sin are [..., T, P].
    Layout "interleaved" pairs channel 2 p with 2 p + 1, any other p with p + P. The arithmetic is done in the dtype
    of the tables and rounded once to x's dtype.
    """
    width = 2 * cos.shape[-1]
    a, b = pairs_of(x[..., :width].to(cos.dtype), layout)
    if inverse:
        sin = -sin
    first, second = a * cos - b * sin, b * cos + a * sin
    out = torch.stack((first, second), -1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), -1)
    out = out.to(x.dtype)
    return out if width == x.shape[-1] else torch.cat((out, x[..., width:]), -1)


def pairs_of(x: Tensor, layout: str) -> tuple[Tensor, ...]:
    """The first and the second channels [..., P] of all pairs of x [..., 2 P]."""
    return x.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else x.chunk(2, -1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, inverse: bool = False) -> Tensor:
    """Rotate the pairs of the first 2 P channels of x [B, H, T, D]; the others pass. `turned` says what it computes.

    cos, sin  [B or 1, H or 1, T, P] in `rotation_dtype(x)`, times a temperature if there is one
    inverse   rotate back: by the transpose of the rotation, which is also its gradient

    For the gradient nothing is kept but the tables, unless they have gradients themselves. Gradients of gradients,
    functional transforms (vmap, jvp), tracing, fake tensors and other devices work; where PyTorch has to see every
    step, the readable form takes over. Under torch.compile it is one operator of the graph, or part of its fused code
    where nothing was compiled beforehand.
    """
    if torch.compiler.is_compiling():
        if native.PRESENT and x.device.type == "cpu" and x.dim() == 4 and not is_exporting():
            return torch.ops.posenc.rotate_pairs(cos, sin, layout, inverse, x)
        return turned(x, cos, sin, layout, inverse=inverse)
    if x.dim() != 4 or not is_plain(x):
        return turned(x, cos, sin, layout, inverse=inverse)
    if (x.requires_grad or cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        return RotatePairs.apply(cos, sin, layout, inverse, x)[0]
    return rotated(cos, sin, layout, inverse, x)


def rotate_both(q: Tensor, k: Tensor, table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Rotate q [B, H, T, D] and k [B, KV, T, D] by one table [2, B or 1, H or 1, T, P]: cosines, then sines.

    The same as two calls of `rotate_pairs`, at the price of one where both or neither have a gradient.
    """
    if is_plain(q, k):
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or table.requires_grad):
            if q.requires_grad and k.requires_grad and q.dim() == k.dim() == 4:
                return RotatePairs.apply(*table.unbind(0), layout, False, q, k)
        elif q.is_cpu and table.is_cpu and (library := native.load().library) is not None:
            plan = plan_for_both(
                *(q.dtype, q.shape, q.stride(), k.dtype, k.shape, k.stride()),
                *(table.dtype, table.shape, table.stride(), layout),
            )
            if plan is not None:
                out = torch.empty_like(q), torch.empty_like(k)
                addresses = q.data_ptr(), out[0].data_ptr(), k.data_ptr(), out[1].data_ptr(), table.data_ptr()
                library.posenc_rotate_both(ctypes.addressof(plan), native.BOTH(*addresses, torch.get_num_threads()))
                return out
    cos, sin = table.unbind(0)
    return rotate_pairs(q, cos, sin, layout), rotate_pairs(k, cos, sin, layout)


class RotatePairs(torch.autograd.Function):
    """The rotation of tensors by one table, with its gradient: the inverse rotation."""

    @staticmethod
    def forward(ctx: Any, cos: Tensor, sin: Tensor, layout: str, inverse: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        keep(ctx, cos, sin, layout, inverse, tensors)
        return tuple([rotated(cos, sin, layout, inverse, x) for x in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_cos, to_sin, to_x = gradients(ctx, grads)
        return to_cos, to_sin, None, None, *to_x


def keep(ctx: Any, cos: Tensor, sin: Tensor, layout: str, inverse: bool, tensors: Sequence[Tensor]) -> None:
    """What the gradients are made from: of the tensors nothing, unless the table has a gradient."""
    ctx.learned = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
    ctx.save_for_backward(cos, sin, *(tensors if ctx.learned else ()))
    ctx.layout, ctx.inverse = layout, inverse


def gradients(ctx: Any, grads: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
    """The gradients of cos, of sin and of each tensor, themselves with gradients where they are asked for."""
    cos, sin, *tensors = ctx.saved_tensors
    to_x = [rotate_pairs(grad, cos, sin, ctx.layout, inverse=not ctx.inverse) for grad in grads]
    if not ctx.learned:
        return None, None, to_x
    width = 2 * cos.shape[-1]
    to_cos, to_sin = torch.zeros_like(cos), torch.zeros_like(sin)
    for x, grad in zip(tensors, grads, strict=True):
        (a, b), (to_a, to_b) = (pairs_of(t[..., :width].to(cos.dtype), ctx.layout) for t in (x, grad))
        to_cos = to_cos + (to_a * a + to_b * b).sum_to_size(cos.shape)
        to_sin = to_sin + (to_a * b - to_b * a if ctx.inverse else to_b * a - to_a * b).sum_to_size(sin.shape)
    return to_cos, to_sin, to_x


def is_plain(*tensors: Tensor) -> bool:
    """Whether these are numbers in the memory of one device that nobody but autograd watches, to be read directly.

    They are not while a graph is compiled.
    """
    if torch.compiler.is_compiling():
        return False
    for x in tensors:
        if type(x) not in PLAIN or not (x.is_cpu or device_of(x) == "cuda") or x.is_neg():
            return False
    return not is_watched()


PLAIN = (Tensor, torch.nn.Parameter)


def rotated(cos: Tensor, sin: Tensor, layout: str, inverse: bool, x: Tensor) -> Tensor:
    """x, turned, in new memory; autograd does not see it."""
    out = torch.empty_like(x)
    if x.is_cpu and x.stride(3) != 1:
        # A gradient that a sum has expanded, as a rule.
        x = x.contiguous()
    if x.is_cpu and cos.is_cpu and (library := native.load().library) is not None:
        rotation = plan(
            *(x.dtype, x.shape, x.stride(), out.stride()),
            *(cos.dtype, cos.shape, cos.stride(), sin.stride(), layout, inverse),
        )
        if rotation is not None and sin.dtype == cos.dtype and sin.shape == cos.shape:
            addresses = x.data_ptr(), out.data_ptr(), cos.data_ptr(), sin.data_ptr()
            library.posenc_rotate(ctypes.addressof(rotation), *addresses, torch.get_num_threads())
            return out
    with torch.no_grad():
        if device_of(x) == device_of(cos) == "cuda" and triton_serves():
            rotate_pairs_triton.rotate_into(out, x, cos, sin, layout, inverse=inverse)
        else:
            out.copy_(turned(x, cos, sin, layout, inverse=inverse))
    return out


@functools.cache
def triton_serves() -> bool:
    return rotate_pairs_triton.why_not() is None


@functools.lru_cache(maxsize=1024)
def plan(
    dtype: torch.dtype,
    shape: torch.Size,
    x: tuple[int, ...],
    out: tuple[int, ...],
    table_dtype: torch.dtype,
    table: torch.Size,
    cos: tuple[int, ...],
    sin: tuple[int, ...],
    layout: str,
    inverse: bool,
) -> native.Rotation | None:
    """What the compiled code has to know of tensors with these shapes and strides, or None where it cannot serve."""
    fits = (
        dtype in TYPES
        and table_dtype == (torch.float32 if dtype in HALF_PRECISION else torch.float64)
        and len(shape) == len(table) == 4
        and all(size in (1, full) for size, full in zip(table[:3], shape[:3], strict=True))
        and 0 < 2 * table[3] <= shape[3]
        and cos == sin
        and (cos[3] == 1 or table[3] == 1)
        and (x[3] == out[3] == 1 or shape[3] == 1)
    )
    if not fits:
        return None
    rotation = native.Rotation(*shape, table[3])
    rotation.x[:], rotation.out[:] = x[:3], out[:3]
    rotation.table[:] = [0 if size == 1 else step for size, step in zip(table[:3], cos[:3], strict=True)]
    rotation.type, rotation.layout, rotation.inverse = TYPES.index(dtype), layout == "interleaved", inverse
    largest = native.load().instruction_set
    rotation.set = largest if math.prod(shape) >= native.ENOUGH_FOR_AVX512 else min(largest, native.AVX2)
    return rotation


@functools.lru_cache(maxsize=1024)
def plan_for_both(
    q_dtype: torch.dtype,
    q_shape: torch.Size,
    q: tuple[int, ...],
    k_dtype: torch.dtype,
    k_shape: torch.Size,
    k: tuple[int, ...],
    table_dtype: torch.dtype,
    table_shape: torch.Size,
    table: tuple[int, ...],
    layout: str,
) -> native.RotationOfBoth | None:
    """The plans for queries and keys by one table, or None where the compiled code cannot serve."""
    if len(table_shape) != 5 or table_shape[0] != 2:
        return None
    plans = []
    for dtype, shape, strides in ((q_dtype, q_shape, q), (k_dtype, k_shape, k)):
        out = torch.empty_like(torch.empty_strided(shape, strides, dtype=dtype, device="cpu")).stride()
        found = plan(dtype, shape, strides, out, table_dtype, table_shape[1:], table[1:], table[1:], layout, False)
        if found is None:
            return None
        plans.append(found)
    return native.RotationOfBoth(*plans, table[0] * table_dtype.itemsize)


# The same as an operator, for torch.compile alone: a call costs more than those above.
library = torch.library.Library("posenc", "DEF")
library.define("rotate_pairs(Tensor cos, Tensor sin, str layout, bool inverse, Tensor x) -> Tensor")


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *given, x = inputs
    keep(ctx, *given, (x,))


def turned_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    to_cos, to_sin, (to_x,) = gradients(ctx, (grad,))
    return to_cos, to_sin, None, None, to_x


library.impl("rotate_pairs", rotated, "CPU")
torch.library.register_fake("posenc::rotate_pairs", lambda *given: torch.empty_like(given[-1]), lib=library)
torch.library.register_autograd("posenc::rotate_pairs", turned_back, setup_context=keep_inputs, lib=library)
