"""The rotation of channel pairs as a Triton kernel: the operator of `rotate_pairs` on a GPU.

One pass over the memory: each element is read once, turned in the dtype of the tables and written once, whatever the
strides. Heads that share a table are turned by the same program, so that it is read once for several of them.
"""

import functools
from importlib.util import find_spec

import torch
from torch import Tensor

HEADS = 4
"""Heads that one program turns, one after the other, with one table."""

PAIRS = 1024
"""Channel pairs of one head that one program turns together: as many tokens as fill it."""


def why_not() -> str | None:
    """Why this machine cannot run it, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if find_spec("triton") is None:
        return "triton is not installed; PyTorch's CUDA wheels bring it along"
    return None


def rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: str, *, inverse: bool = False) -> Tensor:
    """Write x [B, H, T, D], turned, into `out` of the same shape and dtype, which may be x itself; returns `out`.

    (a, b) -> (a cos - b sin, b cos + a sin) for the pairs of the first 2 P channels, with cos and sin
    [1 or B, 1 or H, T, P], and their sines negated for the inverse; the other channels pass. Layout "half" pairs
    channel p with p + P, "interleaved" 2 p with 2 p + 1. The arithmetic is that of the tables' dtype, rounded once to
    x's. All tensors may have any strides, `out` any that do not overlap.

    Autograd knows nothing of it: `rotate_pairs` is what to call. Triton's interpreter (TRITON_INTERPRET=1) runs it on
    tensors in the CPU's memory, to test it; it cuts float32 to bfloat16 where a GPU rounds.
    """
    B, H, T, D = x.shape
    P = cos.shape[-1]
    assert out.shape == x.shape and out.dtype == x.dtype and 0 < 2 * P <= D
    cos, sin = (table.expand(B, H, T, P) for table in (cos, sin))
    power = power_of_two(P)
    rows = max(1, min(PAIRS // power, power_of_two(T)))
    # What is turned in place has nothing to copy.
    passed = 0 if out.data_ptr() == x.data_ptr() else D - 2 * P
    with torch.cuda.device_of(x):
        program()[-(-T // rows), -(-H // HEADS), B](
            *(out, x, cos, sin, H, T),
            *(*out.stride(), *x.stride(), *cos.stride(), *sin.stride()),
            P=P,
            D=D,
            INTERLEAVED=layout == "interleaved",
            INVERSE=inverse,
            PER_HEAD=bool(cos.stride(1) or sin.stride(1)),
            HEADS=HEADS,
            ROWS=rows,
            PAIRS=power,
            PASSED=power_of_two(passed) if passed else 0,
        )
    return out


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n: Triton's blocks have no other sizes."""
    return 1 << (n - 1).bit_length()


@functools.cache
def program():
    """The kernel, made when it is first needed: importing triton takes time, and it may not be there."""
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
        within = (t < T) & (p < P)
        cos += b * cos_b + t * cos_t + p * cos_p
        sin += b * sin_b + t * sin_t + p * sin_p
        out += b * out_b + t * out_t
        x += b * x_b + t * x_t
        if not PER_HEAD:
            c = tl.load(cos, mask=within, other=0.0)
            s = tl.load(sin, mask=within, other=0.0)
        for h in range(start, tl.minimum(start + HEADS, H)):
            if PER_HEAD:
                c = tl.load(cos + h * cos_h, mask=within, other=0.0)
                s = tl.load(sin + h * sin_h, mask=within, other=0.0)
            signed = -s if INVERSE else s
            source, target = x + h * x_h, out + h * out_h
            if INTERLEAVED:
                # Neighbours in memory are read together, and parted in registers.
                d = tl.arange(0, 2 * PAIRS)[None]
                both = (t < T) & (d < 2 * P)
                pairs = tl.load(source + d * x_d, mask=both, other=0.0).to(c.dtype)
                one, other = tl.split(tl.reshape(pairs, (ROWS, PAIRS, 2)))
                turned = tl.join(one * c - other * signed, other * c + one * signed)
                turned = tl.reshape(turned, (ROWS, 2 * PAIRS)).to(out.dtype.element_ty)
                tl.store(target + d * out_d, turned, mask=both)
            else:
                one = tl.load(source + p * x_d, mask=within, other=0.0).to(c.dtype)
                other = tl.load(source + (p + P) * x_d, mask=within, other=0.0).to(c.dtype)
                turned = (one * c - other * signed).to(out.dtype.element_ty)
                tl.store(target + p * out_d, turned, mask=within)
                turned = (other * c + one * signed).to(out.dtype.element_ty)
                tl.store(target + (p + P) * out_d, turned, mask=within)
            if PASSED:
                d = 2 * P + tl.arange(0, PASSED)[None]
                beyond = (t < T) & (d < D)
                tl.store(target + d * out_d, tl.load(source + d * x_d, mask=beyond), mask=beyond)

    return rotate
