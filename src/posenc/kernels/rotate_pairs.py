"""The rotation of channel pairs by given angles: the operator behind every rotary encoding, in readable form."""

import torch
from torch import Tensor

LAYOUTS = ("half", "interleaved")


def exact(x: Tensor) -> Tensor:
    """x in float64, on the CPU where its own device has no float64: angles are taken so."""
    return x.to("cpu" if x.device.type == "mps" else x.device).double()


def channels_of_pair(pair: int, pairs: int, layout: str) -> tuple[int, int]:
    """The two channels of one of so many pairs."""
    return (pair, pair + pairs) if layout == "half" else (2 * pair, 2 * pair + 1)


def rotation_dtype(x: Tensor) -> torch.dtype:
    """The dtype to rotate x in: more exact than its own, so that the result is off by its one rounding."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if half or x.device.type == "mps" else torch.float64


def cos_sin(angle: Tensor, temperature: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines and sines [2, ...] of angles (radians, float64) times the temperature, rounded once to dtype."""
    return (torch.stack((angle.cos(), angle.sin())) * temperature).to(dtype).to(device)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate the pairs of the first 2 P channels of x [..., T, D]; the other channels pass.

    (a, b) -> (a cos - b sin, b cos + a sin), with cos and sin [..., T, P] in `rotation_dtype(x)`.
    Layout "half" pairs channel p with p + P; "interleaved" pairs 2 p with 2 p + 1. The arithmetic is done in the dtype
    of the tables and rounded once to x's dtype. x is not changed.
    """
    width = 2 * cos.shape[-1]
    turned, passed = x[..., :width].to(cos.dtype), x[..., width:]
    if layout == "half":
        a, b = turned.chunk(2, -1)
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    out = out.to(x.dtype)
    return out if passed.shape[-1] == 0 else torch.cat((out, passed), -1)
