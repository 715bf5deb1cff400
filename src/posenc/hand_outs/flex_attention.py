"""FlexAttention: a closure for the biases, a mask in blocks, and how q and k are turned before."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.biases import Bias
from posenc.encoding import Encoding
from posenc.hand_outs._target import Target, Wanted
from posenc.kernels.flex import block_mask, fused, in_float32
from posenc.keys import Keys
from posenc.score_mods import in_turn


@dataclass(frozen=True, eq=False)
class FlexAttention(Target):
    """What PyTorch's FlexAttention takes: queries, keys and values are [B, H, T, D], and q and k are turned before it.

    logit(b, h, i, j) = score_mod(scale q_i . k_j, b, h, i, j) where mask_mod(b, h, i, j) of the block_mask holds

    turn            (q, k) -> (q, k) [B, H, T, D], by posenc itself: FlexAttention turns nothing. None where nothing turns
    flex_attention  score_mod, None where nothing is added; block_mask, None where all see all

    Whole distances are looked up in a table, so the closure fuses. It is made for these tokens: T of them, on as many.
    Source: PyTorch 2.13, flex_attention and create_block_mask in torch/nn/attention/flex_attention.py.
    """

    title = "FlexAttention"
    takes = "adds to each logit what a closure of its place says"
    doors = frozenset({"turn", "by_distance"})
    takes_mask = True
    dtypes = (torch.float32,)

    turn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None
    flex_attention: dict[str, Any]

    @classmethod
    def of(cls, wanted: Wanted) -> "FlexAttention":
        biased = [part for part in wanted.check_doors() if "by_distance" in part.doors]
        like = torch.empty(0, dtype=wanted.dtype, device=wanted.at.order.device)
        mods = [fused(bias, like) for part in biased for bias in biases_of(part, wanted)]
        mask = block_mask(wanted.mask, wanted.at, wanted.at)
        return cls(turning(wanted), {"score_mod": in_float32(in_turn(mods)), "block_mask": mask})


def biases_of(part: Encoding, wanted: Wanted) -> list[Bias]:
    """The biases of a part that reads distances alone, and so no queries and keys."""
    rows = max(wanted.at.coords.shape[0], wanted.at.order.shape[0])
    nothing = torch.empty(rows, wanted.shape.heads, 0, 0, device=wanted.at.order.device)
    return part.biases(nothing, wanted.at, Keys(nothing, nothing, wanted.at))


def turning(wanted: Wanted) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    if "turn" not in wanted.encoding.doors:
        return None
    # What cannot be turned here is refused now, and not when the first token comes.
    nothing = torch.empty(1, wanted.shape.heads, wanted.at.tokens, wanted.shape.head_dim, device=wanted.at.order.device)
    wanted.encoding.turn_both(nothing, nothing, wanted.at, wanted.at)

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return wanted.encoding.turn_both(q, k, wanted.at, wanted.at)

    return turn
