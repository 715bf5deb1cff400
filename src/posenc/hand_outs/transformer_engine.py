"""TransformerEngine: angles."""

from dataclasses import dataclass
from typing import Any

import torch

from posenc.hand_outs._target import HandOutRequest, Target


@dataclass(frozen=True, eq=False)
class TransformerEngine(Target):
    """The arguments of TransformerEngine's rotary (RoPE) kernel: angles, from which it computes cosines and sines.

    apply_rotary_pos_emb  freqs [T, 1, 1, r] in float32, the angle of each channel (radians), less whole turns; and
                          interleaved. For the first r channels of a head, in any tensor_format
    DotProductAttention   softmax_scale: with the square of a temperature, which no angle can say

    Source: NVIDIA/TransformerEngine, apply_rotary_pos_emb in transformer_engine/pytorch/attention/rope.py at 0dc141cf.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("rotary", to="transformer_engine", shape=Shape.of(dim=64, heads=4, max_len=128))
    >>> handed.apply_rotary_pos_emb["freqs"].shape, handed.DotProductAttention
    (torch.Size([128, 1, 1, 16]), {'softmax_scale': 0.25})
    """

    title = "TransformerEngine"
    takes = "turns queries and keys by angles"
    dtypes = (torch.float32,)

    apply_rotary_pos_emb: dict[str, Any]
    DotProductAttention: dict[str, Any]

    @classmethod
    def from_request(cls, request: HandOutRequest) -> "TransformerEngine":
        rotation = request.shared_rotation()
        angles = rotation.angles[0]
        twice = angles.repeat_interleave(2, -1) if rotation.interleaved else torch.cat((angles, angles), -1)
        return cls(
            {"freqs": twice.to(request.dtype)[:, None, None], "interleaved": rotation.interleaved},
            {"softmax_scale": request.scale(rotation)},
        )
