"""Attention through the package flash_attn (FlashAttention 2), by name only.

logit(i, j) = scale q_i . k_j - slope_h |i + S - T - j|

T queries are the last of S keys. Heads are of float16 or bfloat16, of up to 256 channels, on a GPU of NVIDIA's from
Ampere on; several queries may share a head of keys. A mask is causal or not, with a window or without. A bias is one of
the distance, whose numbers are a slope times the distance (ALiBi). Slopes get no gradient.

Source: Dao 2023, arXiv:2307.08691; Dao-AILab/flash-attention, flash_attn_func in flash_attn/flash_attn_interface.py at
00530025, of which slopes need version 2.4.1.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, ByDistance, steps_between
from posenc.encoding.keys import Keys
from posenc.kernels.reference import one_width
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import may_be_read

IS_INSTALLED = find_spec("flash_attn") is not None


def why_not(request: Request) -> str | None:
    """Return why FlashAttention cannot serve, or None."""
    if request.device != "cuda":
        return f"FlashAttention is for CUDA, got queries on '{request.device}'; use kernel='auto'"
    if not IS_INSTALLED:
        return "flash_attn is not installed; pip install flash-attn --no-build-isolation, or use kernel='auto'"
    if (reason := request.why_not_fused("flash")) is not None:
        return reason
    reason = why_not_inputs(request)
    return None if reason is None else f"FlashAttention {reason}; use kernel='auto'"


def why_not_inputs(request: Request) -> str | None:
    """Return why FlashAttention cannot serve these queries, masks and biases, or None."""
    q = request.q
    if request.sums or request.sinks:
        return "has no gradient of the sums of its exponentials, which sinks take"
    if q is not None and (q.dtype not in (torch.float16, torch.bfloat16) or q.shape[-1] > 256 or not q.shape[0]):
        return f"takes a batch of heads of up to 256 channels in half precision, got {list(q.shape)} in {q.dtype}"
    if request.inputs is None:
        return None
    biases, at, keys_at, mask = request.inputs
    if mask.prefix or mask.tensor is not None:
        return f"takes no more of a mask than a window, and got {'a prefix' if mask.prefix else 'a tensor'}"
    last = at.contiguous if at is keys_at else steps_between(at, keys_at) == keys_at.tokens - at.tokens
    if not (last or mask.sees_everything(at, keys_at)):
        return "takes tokens as they lie, the queries as the last, and got padding, documents, free slots or ids"
    if not biases:
        return None
    bias = biases[0]
    if isinstance(bias, ByDistance) and len(biases) == 1 and bias.axes == 1:
        if not may_be_read():
            return "is told slopes in numbers, and nothing reads them while a graph is made"
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in bias.module.parameters()):
            return f"has no gradient of {request.encoding}"
        in_a_row = steps_between(bias.at, bias.keys_at) == keys_at.tokens - at.tokens
        if in_a_row and slopes_of(bias, mask) is not None:
            return None
    return f"adds a slope times the distance of tokens in a row; {request.encoding} or a soft-cap adds something else"


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
) -> tuple[Tensor, Tensor | None]:
    """Call flash_attn_func, whose heads are [B, T, H, D]; deterministic if PyTorch is set so."""
    assert not need_weights, "why_not('flash') forbids this"
    # A late import: it loads its kernels.
    from flash_attn import flash_attn_func

    options = mask_options(mask) | {"deterministic": torch.are_deterministic_algorithms_enabled()}
    if biases:
        slopes = slopes_of(cast(ByDistance, biases[0]), mask)
        assert slopes is not None, "why_not('flash') forbids this"
        options["alibi_slopes"] = slopes.to(q.device)
    tokens_first = (x.transpose(1, 2) for x in one_width(q, keys.k, keys.v))
    output = flash_attn_func(*tokens_first, dropout_p=dropout, softmax_scale=scale, **options)
    return output.transpose(1, 2)[..., : keys.v.shape[-1]], None


def mask_options(mask: Mask) -> dict[str, Any]:
    """Return the mask as arguments of flash_attn_func: causal, and window_size (left, right), -1 for all."""
    side = -1 if mask.window is None else mask.window - 1
    return {"causal": mask.causal, "window_size": (side, 0 if mask.causal and side > 0 else side)}


def slopes_of(bias: ByDistance, mask: Mask) -> Tensor | None:
    """Return the slopes of a bias at all distances of contiguous tokens, see `linear_slopes`."""
    farthest = max(bias.at.tokens, bias.keys_at.tokens)
    reach = max(min(mask.window or farthest, farthest), 2)
    first = 0 if mask.causal else 1 - reach
    tables, key = cast(dict[Any, Tensor | None], bias.grids), ("slopes", first, reach)
    if key not in tables:
        # A function without parameters is evaluated on the CPU, to avoid a read from the GPU.
        device = next((parameter.device for parameter in bias.module.parameters()), "cpu")
        delta = torch.arange(first, reach, dtype=torch.float64, device=device)
        tables[key] = linear_slopes(bias.values_on_axis(delta), delta)
    return tables[key]


def linear_slopes(values: Tensor, delta: Tensor) -> Tensor | None:
    """Return the slope [H] of each head in float32 if values [H, n] are -slope |distance|; else None.

    One of the distances [n] is 1.
    """
    slopes = -values[:, delta == 1]
    return slopes[:, 0].float() if torch.allclose(values, -slopes * delta.abs(), rtol=1e-6, atol=0) else None
