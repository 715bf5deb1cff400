"""MLX: the positions per radian of each pair."""

from dataclasses import dataclass
from typing import Any

import torch

from posenc.hand_outs._target import WITH_TABLES, HandOutRequest, Target
from posenc.tokens.positions import Positions


@dataclass(frozen=True, eq=False)
class MLX(Target):
    """The arguments of MLX's rotary (RoPE) kernel: no table, but the divisor of the position of each pair.

    angle_k = scale (offset + t) / freqs_k

    rope                          dims; traditional, whether neighbours form pairs; base None; scale 1; offset; freqs
                                  [r/2] in float32, positions per radian: 1/frequency, and not the frequency. A
                                  tensor of PyTorch: mx.array(handed.rope["freqs"].tolist())
    scaled_dot_product_attention  scale: with the square of a temperature, which no angle can say

    It computes angles in float32: at position 100,000 they are off by up to 0.008 radians.
    Source: ml-explore/mlx, rope in mlx/fast.cpp at 0017d3c3.

    >>> from posenc import Shape, hand_out
    >>> hand_out("rotary", to="mlx", shape=Shape.of(dim=16, heads=4, max_len=128)).rope["freqs"]
    tensor([  1.0000, 100.0000])
    """

    title = "MLX"
    takes = "turns queries and keys by frequencies"
    dtypes = (torch.float32,)

    rope: dict[str, Any]
    scaled_dot_product_attention: dict[str, Any]

    @classmethod
    def from_request(cls, request: HandOutRequest) -> "MLX":
        offset, whole = request.first_of_count(), request.shared_rotation()
        # The rotation from one position to the next.
        step_at = Positions.count(1, 1, device=request.at.order.device).with_horizon(request.at.horizon)
        rotation = request.rotation(step_at)
        angles = request.at.coords[0] * rotation.angles[0, 0]
        if not torch.allclose(whole.cos, rotation.sizes[0, 0] * angles.cos(), atol=1e-9):
            request.refuse("the angle of a pair is no multiple of the position", WITH_TABLES)
        rope = {
            "dims": rotation.width,
            "traditional": rotation.interleaved,
            "base": None,
            "scale": 1.0,
            "offset": offset,
            "freqs": rotation.angles[0, 0].reciprocal().to(request.dtype),
        }
        return cls(rope, {"scale": request.scale(rotation)})
