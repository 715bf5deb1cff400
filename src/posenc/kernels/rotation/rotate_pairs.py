"""The rotation of channel pairs by given angles: the operator behind every rotary encoding (RoPE).

`rotate_readably` defines the result. `rotate_pairs` computes it faster: compiled code on the CPU (rotate_pairs.c),
Triton on a GPU (rotate_pairs_triton.py), and PyTorch's own operators without either.
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
from posenc.tokens.tracing import is_exporting, is_watched

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""The dtypes of the compiled code, in its order."""

HALF_PRECISION = TYPES[2:]


def rotation_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to rotate x in. It is more exact than x's, so that the result is rounded once."""
    return torch.float32 if x.dtype in HALF_PRECISION or x.is_mps else torch.float64


def rotate_readably(x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, inverse: bool = False) -> Tensor:
    """Return x [..., T, D] with the pairs of its first 2 P channels rotated.

    (a, b) -> (a cos - b sin, b cos + a sin), with the sines negated for the inverse; cos and sin are [..., T, P].
    Layout "interleaved" pairs channel 2 p with 2 p + 1, any other p with p + P. The other channels are unchanged. The
    arithmetic is done in the dtype of the tables and rounded once to x's dtype.
    """
    width = 2 * cos.shape[-1]
    a, b = pairs_of(x[..., :width].to(cos.dtype), layout)
    if inverse:
        sin = -sin
    first, second = a * cos - b * sin, b * cos + a * sin
    output = torch.stack((first, second), -1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), -1)
    output = output.to(x.dtype)
    return output if width == x.shape[-1] else torch.cat((output, x[..., width:]), -1)


def pairs_of(x: Tensor, layout: str) -> tuple[Tensor, ...]:
    """Return the first and the second channels [..., P] of all pairs of x [..., 2 P]."""
    return x.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else x.chunk(2, -1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, inverse: bool = False) -> Tensor:
    """Rotate the first 2 P channels of x [B, H, T, D] in pairs, as `rotate_readably` does.

    cos, sin  [B or 1, H or 1, T, P] in `rotation_dtype(x)`, times a temperature if there is one
    inverse   rotate back: by the transpose of the rotation, which is also its gradient

    The backward pass saves the tables alone, unless they require gradients. Gradients of gradients, functional
    transforms (vmap, jvp), tracing, fake tensors and other devices work, by the readable form if PyTorch has to see
    every step. Under torch.compile it is one operator of the graph, or fused if there is no compiled library.
    """
    if torch.compiler.is_compiling():
        if native.PRESENT and x.device.type == "cpu" and x.dim() == 4 and not is_exporting():
            return torch.ops.posenc.rotate_pairs(cos, sin, layout, inverse, x)
        return rotate_readably(x, cos, sin, layout, inverse=inverse)
    if x.dim() != 4 or not is_plain(x):
        return rotate_readably(x, cos, sin, layout, inverse=inverse)
    if (x.requires_grad or cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        return RotatePairs.apply(cos, sin, layout, inverse, x)[0]
    return rotate_plain(cos, sin, layout, inverse, x)


def rotate_both(q: Tensor, k: Tensor, table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """Rotate q [B, H, T, D] and k [B, KV, T, D] by one table, cosines then sines.

    The table is [2, B or 1, H or 1, T, P]. It costs one call of `rotate_pairs` if both or neither require gradients.
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
                outputs = torch.empty_like(q), torch.empty_like(k)
                addresses = q.data_ptr(), outputs[0].data_ptr(), k.data_ptr(), outputs[1].data_ptr(), table.data_ptr()
                library.posenc_rotate_both(ctypes.addressof(plan), native.pack(*addresses, torch.get_num_threads()))
                return outputs
    cos, sin = table.unbind(0)
    return rotate_pairs(q, cos, sin, layout), rotate_pairs(k, cos, sin, layout)


class RotatePairs(torch.autograd.Function):
    """The rotation of tensors by one table, with its gradient: the inverse rotation."""

    @staticmethod
    def forward(ctx: Any, cos: Tensor, sin: Tensor, layout: str, inverse: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        save_tables(ctx, cos, sin, layout, inverse, tensors)
        return tuple([rotate_plain(cos, sin, layout, inverse, x) for x in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_cos, to_sin, to_x = gradients(ctx, grads)
        return to_cos, to_sin, None, None, *to_x


def save_tables(ctx: Any, cos: Tensor, sin: Tensor, layout: str, inverse: bool, tensors: Sequence[Tensor]) -> None:
    """Save the tables for the backward pass, and the tensors if the tables require gradients."""
    ctx.learned = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
    ctx.save_for_backward(cos, sin, *(tensors if ctx.learned else ()))
    ctx.layout, ctx.inverse = layout, inverse


def gradients(ctx: Any, grads: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
    """Return the gradients in cos, sin and each tensor, differentiable again."""
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
    """Whether compiled code may read these tensors directly: plain tensors, no mode or transform, no compilation."""
    if torch.compiler.is_compiling():
        return False
    for x in tensors:
        if type(x) not in PLAIN_TYPES or not (x.is_cpu or device_of(x) == "cuda") or x.is_neg():
            return False
    return not is_watched()


PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def rotate_plain(cos: Tensor, sin: Tensor, layout: str, inverse: bool, x: Tensor) -> Tensor:
    """Return x, rotated, in new memory, without autograd."""
    output = torch.empty_like(x)
    if x.is_cpu and x.stride(3) != 1:
        # Usually a gradient expanded by a sum.
        x = x.contiguous()
    if x.is_cpu and cos.is_cpu and (library := native.load().library) is not None:
        rotation = rotation_plan(
            *(x.dtype, x.shape, x.stride(), output.stride()),
            *(cos.dtype, cos.shape, cos.stride(), sin.stride(), layout, inverse),
        )
        if rotation is not None and sin.dtype == cos.dtype and sin.shape == cos.shape:
            addresses = x.data_ptr(), output.data_ptr(), cos.data_ptr(), sin.data_ptr()
            library.posenc_rotate(ctypes.addressof(rotation), *addresses, torch.get_num_threads())
            return output
    with torch.no_grad():
        if device_of(x) == device_of(cos) == "cuda" and triton_serves():
            rotate_pairs_triton.rotate_into(output, x, cos, sin, layout, inverse=inverse)
        else:
            output.copy_(rotate_readably(x, cos, sin, layout, inverse=inverse))
    return output


@functools.cache
def triton_serves() -> bool:
    return rotate_pairs_triton.why_not() is None


@functools.lru_cache(maxsize=1024)
def rotation_plan(
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
    """Return the arguments of the compiled code for these shapes and strides, or None if it cannot serve."""
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
    rotation.set = largest if math.prod(shape) >= native.MIN_CHANNELS_FOR_AVX512 else min(largest, native.AVX2)
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
    """Return the arguments for queries and keys by one table, or None if the compiled code cannot serve."""
    if len(table_shape) != 5 or table_shape[0] != 2:
        return None
    plans = []
    for dtype, shape, strides in ((q_dtype, q_shape, q), (k_dtype, k_shape, k)):
        out = torch.empty_like(torch.empty_strided(shape, strides, dtype=dtype, device="cpu")).stride()
        of_table = table_dtype, table_shape[1:], table[1:], table[1:]
        plan = rotation_plan(dtype, shape, strides, out, *of_table, layout, False)
        if plan is None:
            return None
        plans.append(plan)
    return native.RotationOfBoth(*plans, table[0] * table_dtype.itemsize)


# The operator for torch.compile alone: a call costs more than the functions above.
library = torch.library.Library("posenc", "DEF")
library.define("rotate_pairs(Tensor cos, Tensor sin, str layout, bool inverse, Tensor x) -> Tensor")


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *options, x = inputs
    save_tables(ctx, *options, (x,))


def differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    to_cos, to_sin, (to_x,) = gradients(ctx, (grad,))
    return to_cos, to_sin, None, None, to_x


library.impl("rotate_pairs", rotate_plain, "CPU")
torch.library.register_fake("posenc::rotate_pairs", lambda *given: torch.empty_like(given[-1]), lib=library)
torch.library.register_autograd("posenc::rotate_pairs", differentiate, setup_context=save_inputs, lib=library)
