"""FlashInfer: a cache of cosines and sines, looked up by position ids."""

from dataclasses import dataclass
from typing import Any

import torch

from posenc.hand_outs._target import HandOutRequest, Target


@dataclass(frozen=True, eq=False)
class FlashInfer(Target):
    """The arguments of FlashInfer's rotary (RoPE) kernel. Queries and keys are [tokens, H D], all sequences in one row.

    apply_rope_with_cos_sin_cache  positions [tokens]; head_size; cos_sin_cache [max, r] in float32, the cosines of the
                                   r/2 pairs, then their sines; is_neox, whether the layout is half

    The cache has a row for each position up to the trained length, or to the highest position.
    Source: flashinfer-ai/flashinfer, apply_rope_with_cos_sin_cache in flashinfer/rope.py at 0151f647.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("rotary", to="flashinfer", shape=Shape.of(dim=64, heads=4, max_len=128), positions=3)
    >>> call = handed.apply_rope_with_cos_sin_cache
    >>> call["cos_sin_cache"].shape, call["positions"], call["is_neox"]
    (torch.Size([128, 16]), tensor([0, 1, 2], dtype=torch.int32), True)
    """

    title = "FlashInfer"
    takes = "turns queries and keys by one table"
    dtypes = (torch.float32,)

    apply_rope_with_cos_sin_cache: dict[str, Any]

    @classmethod
    def from_request(cls, request: HandOutRequest) -> "FlashInfer":
        rotation, ids = request.rotation_by_position()
        return cls(
            {
                "positions": ids.flatten().int(),
                "head_size": request.shape.head_dim,
                "cos_sin_cache": rotation.cos_then_sin(request.dtype),
                "is_neox": not rotation.interleaved,
            }
        )
