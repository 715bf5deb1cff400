"""FlashAttention: a table for its rotary kernel; slopes and a window for its attention."""

from dataclasses import dataclass
from typing import Any

from posenc.hand_outs._target import HandOutRequest, Target
from posenc.kernels.flash import mask_options


@dataclass(frozen=True, eq=False)
class FlashAttention(Target):
    """The arguments of FlashAttention, for queries and keys [B, T, H, D] that are rotated before it.

    logit(i, j) = softmax_scale q_i . k_j - alibi_slope_h |i + S - T - j|   for T queries on S keys

    apply_rotary_emb  cos, sin [T, r/2], a row for each token, and interleaved; for the first r channels of a head
    flash_attn_func   causal; window_size, the tokens that each sees on its left and right besides itself, -1 for all;
                      alibi_slopes [H] in float32, if any

    Its attention counts tokens in the order of the tensor: no padding, and one document in each row.
    Source: Dao-AILab/flash-attention, apply_rotary_emb in flash_attn/layers/rotary.py at 09d422b1, flash_attn_func in
    flash_attn/flash_attn_interface.py at 00530025.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("rotary(partial=0.5)", to="flash_attention", shape=Shape.of(dim=64, heads=4, max_len=128))
    >>> handed.apply_rotary_emb["sin"].shape, handed.flash_attn_func
    (torch.Size([128, 4]), {'causal': True, 'window_size': (-1, -1)})
    """

    title = "FlashAttention"
    takes = "turns queries and keys by one table, and subtracts a slope times the distance"
    doors = frozenset({"turn", "by_distance"})
    takes_mask = True

    apply_rotary_emb: dict[str, Any] | None
    flash_attn_func: dict[str, Any]

    @classmethod
    def from_request(cls, request: HandOutRequest) -> "FlashAttention":
        slopes = request.slopes()
        return cls(table_of(request), window_of(request) | ({} if slopes is None else {"alibi_slopes": slopes}))


def table_of(request: HandOutRequest) -> dict[str, Any] | None:
    if request.turning() is None:
        return None
    rotation = request.shared_rotation()
    cos, sin = (table[0].to(request.dtype) for table in (rotation.cos, rotation.sin))
    return {"cos": cos, "sin": sin, "interleaved": rotation.interleaved}


def window_of(request: HandOutRequest) -> dict[str, Any]:
    at, mask = request.at, request.mask
    if mask.prefix or mask.tensor is not None:
        request.refuse(
            f"the mask has {'a prefix' if mask.prefix else 'a tensor of its own'}, and no more than a window is taken",
            "take to='flex_attention'",
        )
    if at.document is not None or not (at.contiguous or at.loose):
        request.refuse(
            "the positions have padding or several documents, and tokens are taken in the order in which they lie",
            "hand out each document by itself, or take to='flex_attention'",
        )
    return mask_options(mask)
