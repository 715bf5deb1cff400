"""FlexAttention: a closure for the biases, a mask in blocks, and how q and k are turned before."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import in_turn
from posenc.hand_outs._target import Target, Wanted
from posenc.kernels.flex import block_mask, in_float32
from posenc.tokens.positions import Positions


@dataclass(frozen=True, eq=False)
class FlexAttention(Target):
    """What PyTorch's FlexAttention takes: heads are [B, H, T, D], and queries and keys are turned before it.

    logit(b, h, i, j) = score_mod(scale q_i . k_j, b, h, i, j) where mask_mod(b, h, i, j) of the block_mask holds

    turn            (q, k) -> (q, k) [B, H, T, D], by posenc itself, since FlexAttention turns nothing; or None
    flex_attention  score_mod, None where nothing is added; block_mask, None where all see all

    Whole distances are looked up in a table, so the closure fuses. It is made for these tokens: T of them, on as many.
    Source: PyTorch 2.13, flex_attention and create_block_mask in torch/nn/attention/flex_attention.py.

    >>> from posenc import Shape, hand_out
    >>> handed = hand_out("alibi", to="flex_attention", shape=Shape.of(dim=64, heads=4, max_len=128))
    >>> handed.turn is None, list(handed.flex_attention)
    (True, ['score_mod', 'block_mask'])
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
        # What reads distances alone reads no queries and keys.
        nothing, at = some_heads(wanted, wanted.at), wanted.at
        keys = Keys(nothing, nothing, at)
        mods = [bias.fused(nothing.dtype) for part in biased for bias in part.biases(nothing, at, keys)]
        mask = block_mask(wanted.mask, at, at)
        return cls(turning(wanted), {"score_mod": in_float32(in_turn(mods)), "block_mask": mask})


def turning(wanted: Wanted) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    if "turn" not in wanted.encoding.doors:
        return None
    # What cannot be turned is refused now, and not when the tokens come.
    last = wanted.at.rows(slice(wanted.at.tokens - 1, None))
    wanted.encoding.turn_both(some_heads(wanted, last), some_heads(wanted, last), last, last)

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return wanted.encoding.turn_both(q, k, wanted.at, wanted.at)

    return turn


def some_heads(wanted: Wanted, at: Positions) -> Tensor:
    """Queries or keys [B or 1, H, T, D] of tokens somewhere, which take no memory."""
    rows = max(fact.shape[0] for fact in at.tensors().values())
    nothing = torch.zeros((), device=at.order.device)
    return nothing.expand(rows, wanted.shape.heads, at.tokens, wanted.shape.head_dim)
