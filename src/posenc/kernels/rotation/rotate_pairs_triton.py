"""The rotation of channel pairs as a Triton kernel: the operator of `rotate_pairs` on a GPU.

One pass over the memory: each element is read once, rotated in the dtype of the tables and written once, whatever the
strides. Heads that share a table are rotated by the same program, which reads it once for several of them.
"""

import functools
from importlib.util import find_spec

import torch
from torch import Tensor

HEADS = 4
"""Heads that one program rotates, one after the other, with one table."""

PAIRS = 1024
"""Channel pairs of one head that one program rotates together, over several tokens."""


def why_not() -> str | None:
    """Return why this machine cannot run it, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if find_spec("triton") is None:
        return "triton is not installed; PyTorch's CUDA wheels bring it along"
    return None


def rotate_into(target: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, inverse: bool = False) -> Tensor:
    """Rotate x [B, H, T, D] into `target` and return it. `target` has the same shape and dtype, and may be x.

    (a, b) -> (a cos - b sin, b cos + a sin) for the pairs of the first 2 P channels, with cos and sin
    [1 or B, 1 or H, T, P], and their sines negated for the inverse; the other channels pass. Layout "half" pairs
    channel p with p + P, "interleaved" 2 p with 2 p + 1. The arithmetic is that of the tables' dtype, rounded once to
    x's. All tensors may have any strides, those of `target` without overlap.

    It has no gradient: call `rotate_pairs` instead. Triton's interpreter (TRITON_INTERPRET=1) runs it on CPU tensors,
    for tests; it truncates float32 to bfloat16 where a GPU rounds.
    """
    B, H, T, D = x.shape
    P = cos.shape[-1]
    assert target.shape == x.shape and target.dtype == x.dtype and 0 < 2 * P <= D
    cos, sin = (table.expand(B, H, T, P) for table in (cos, sin))
    power = power_of_two(P)
    rows = max(1, min(PAIRS // power, power_of_two(T)))
    # In place there is nothing to copy.
    rest = 0 if target.data_ptr() == x.data_ptr() else D - 2 * P
    with torch.cuda.device_of(x):
        program()[-(-T // rows), -(-H // HEADS), B](
            *(target, x, cos, sin, H, T),
            *(*target.stride(), *x.stride(), *cos.stride(), *sin.stride()),
            P=P,
            D=D,
            INTERLEAVED=layout == "interleaved",
            INVERSE=inverse,
            PER_HEAD=bool(cos.stride(1) or sin.stride(1)),
            HEADS=HEADS,
            ROWS=rows,
            PAIRS=power,
            PASSED=power_of_two(rest) if rest else 0,
        )
    return target


def power_of_two(n: int) -> int:
    """Return the smallest power of two from n on: Triton's blocks have no other sizes."""
    return 1 << (n - 1).bit_length()


@functools.cache
def program():
    """Return the kernel, built on first use: importing triton is slow, and it may not be installed."""
    import triton
    import triton.language as tl

    @triton.jit
    def rotate(
        out, x, cos, sin, H, T,
        out_b, out_h, out_t, out_d, x_b, x_h, x_t, x_d, cos_b, cos_h, cos_t, cos_p, sin_b, sin_h, sin_t, sin_p,
        P: tl.constexpr, D: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, PER_HEAD: tl.constexpr,
        HEADS: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr, PASSED: tl.constexpr,
    ):  # fmt: skip
        # Offsets are int64: a tensor may have more than 2^31 elements.
        t = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        start = tl.program_id(1).to(tl.int64) * HEADS
        b = tl.program_id(2).to(tl.int64)
        p = tl.arange(0, PAIRS)[None]
        in_pairs = (t < T) & (p < P)
        cos += b * cos_b + t * cos_t + p * cos_p
        sin += b * sin_b + t * sin_t + p * sin_p
        out += b * out_b + t * out_t
        x += b * x_b + t * x_t
        if not PER_HEAD:
            c = tl.load(cos, mask=in_pairs, other=0.0)
            s = tl.load(sin, mask=in_pairs, other=0.0)
        for h in range(start, tl.minimum(start + HEADS, H)):
            if PER_HEAD:
                c = tl.load(cos + h * cos_h, mask=in_pairs, other=0.0)
                s = tl.load(sin + h * sin_h, mask=in_pairs, other=0.0)
            sine = -s if INVERSE else s
            source, target = x + h * x_h, out + h * out_h
            if INTERLEAVED:
                # Neighbours in memory are read together, and split in registers.
                d = tl.arange(0, 2 * PAIRS)[None]
                in_channels = (t < T) & (d < 2 * P)
                pairs = tl.load(source + d * x_d, mask=in_channels, other=0.0).to(c.dtype)
                first, second = tl.split(tl.reshape(pairs, (ROWS, PAIRS, 2)))
                rotated_pairs = tl.join(first * c - second * sine, second * c + first * sine)
                rotated_pairs = tl.reshape(rotated_pairs, (ROWS, 2 * PAIRS)).to(out.dtype.element_ty)
                tl.store(target + d * out_d, rotated_pairs, mask=in_channels)
            else:
                first = tl.load(source + p * x_d, mask=in_pairs, other=0.0).to(c.dtype)
                second = tl.load(source + (p + P) * x_d, mask=in_pairs, other=0.0).to(c.dtype)
                rotated_pairs = (first * c - second * sine).to(out.dtype.element_ty)
                tl.store(target + p * out_d, rotated_pairs, mask=in_pairs)
                rotated_pairs = (second * c + first * sine).to(out.dtype.element_ty)
                tl.store(target + (p + P) * out_d, rotated_pairs, mask=in_pairs)
            if PASSED:
                d = 2 * P + tl.arange(0, PASSED)[None]
                in_rest = (t < T) & (d < D)
                tl.store(target + d * out_d, tl.load(source + d * x_d, mask=in_rest), mask=in_rest)

    return rotate
