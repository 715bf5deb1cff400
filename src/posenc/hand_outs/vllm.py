"""vLLM: a cache of cosines and sines, looked up by position ids; slopes."""

from dataclasses import dataclass
from typing import Any

from posenc.hand_outs._target import HandOutRequest, Target


@dataclass(frozen=True, eq=False)
class VLLM(Target):
    """The arguments of vLLM: its rotary (RoPE) layer's state, positions, and its attention layer's slopes.

    RotaryEmbedding  the layer's attributes: head_size; rotary_dim, r; max_position_embeddings; is_neox_style, whether
                     the layout is half; dtype; cos_sin_cache [max, r] in it, cosines then sines, with the
                     temperature (mscale) in them. None if nothing rotates
    forward          positions [tokens], of a call of that layer; None if nothing rotates
    Attention        alibi_slopes, a list of H numbers or None

    The cache has a row for each position up to the trained length, or to the highest position. vLLM computes the cache
    in float32 and rounds it to the model's dtype; here it is computed in float64.
    Source: vllm-project/vllm, RotaryEmbedding.forward_native in vllm/model_executor/layers/rotary_embedding/base.py at
    04458da0, Attention in vllm/attention/layer.py at 004a5da0.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("rotary + alibi", to="vllm", shape=Shape.of(dim=64, heads=4, max_len=128))
    >>> handed.RotaryEmbedding["rotary_dim"], handed.Attention
    (16, {'alibi_slopes': [0.25, 0.0625, 0.015625, 0.00390625]})
    """

    title = "vLLM"
    takes = "turns queries and keys by one table, and subtracts a slope times the distance"
    doors = frozenset({"turn", "by_distance"})

    RotaryEmbedding: dict[str, Any] | None
    forward: dict[str, Any] | None
    Attention: dict[str, Any]

    @classmethod
    def from_request(cls, request: HandOutRequest) -> "VLLM":
        slopes = request.slopes()
        attention = {"alibi_slopes": None if slopes is None else slopes.tolist()}
        if request.turning() is None:
            return cls(None, None, attention)
        rotation, ids = request.rotation_by_position()
        layer = {
            "head_size": request.shape.head_dim,
            "rotary_dim": rotation.width,
            "max_position_embeddings": rotation.cos.shape[1],
            "is_neox_style": not rotation.interleaved,
            "dtype": request.dtype,
            "cos_sin_cache": rotation.cos_then_sin(request.dtype),
        }
        return cls(layer, {"positions": ids.flatten()}, attention)
