"""ONNX: the caches of its operator RotaryEmbedding."""

from dataclasses import dataclass
from typing import Any

from posenc.hand_outs._target import HandOutRequest, Target


@dataclass(frozen=True, eq=False)
class ONNX(Target):
    """The arguments of ONNX's operator RotaryEmbedding (RoPE). Queries and keys are [B, H, T, D] or [B, T, H D].

    RotaryEmbedding  cos_cache, sin_cache [max, r/2]; position_ids [B or 1, T], which some runtimes want in as many rows
                     as the batch has; interleaved, 0 or 1; rotary_embedding_dim, r, or 0 for the whole head; num_heads,
                     read for [B, T, H D] alone: that of the queries, to be replaced where there are fewer key heads

    Tensors are PyTorch's; a runtime takes x.numpy(). The caches have a row for each position up to the trained length,
    or to the highest position.
    Source: onnx/onnx 1.23.2, RotaryEmbedding of opset 23, onnx/reference/ops/op_rotary_embedding.py.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("rotary(partial=0.5)", to="onnx", shape=Shape.of(dim=64, heads=4, max_len=128))
    >>> handed.RotaryEmbedding["cos_cache"].shape, handed.RotaryEmbedding["rotary_embedding_dim"]
    (torch.Size([128, 4]), 8)
    """

    title = "ONNX"
    takes = "turns queries and keys by one table"

    RotaryEmbedding: dict[str, Any]

    @classmethod
    def from_request(cls, request: HandOutRequest) -> "ONNX":
        rotation, ids = request.rotation_by_position()
        cos, sin = (table[0].to(request.dtype) for table in (rotation.cos, rotation.sin))
        return cls(
            {
                "cos_cache": cos,
                "sin_cache": sin,
                "position_ids": ids,
                "interleaved": int(rotation.interleaved),
                "rotary_embedding_dim": 0 if rotation.width == request.shape.head_dim else rotation.width,
                "num_heads": request.shape.heads,
            }
        )
