"""FlexAttention: a closure for the biases, a block mask, and a function that rotates q and k first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import chain_mods
from posenc.hand_outs._target import HandOutRequest, Target
from posenc.kernels.flex import block_mask, in_float32
from posenc.tokens.positions import Positions


@dataclass(frozen=True, eq=False)
class FlexAttention(Target):
    """The arguments of PyTorch's FlexAttention, for queries and keys [B, H, T, D] that are rotated before it.

    logit(b, h, i, j) = score_mod(scale q_i . k_j, b, h, i, j) where mask_mod(b, h, i, j) of the block_mask holds

    turn            (q, k) -> (q, k) [B, H, T, D], by posenc, since FlexAttention rotates nothing; or None
    flex_attention  score_mod, None without a bias; block_mask, None if all see all

    Whole distances are looked up in a table, so the closure fuses. It serves these tokens only, T queries on T keys.
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
    def from_request(cls, request: HandOutRequest) -> "FlexAttention":
        parts = [part for part in request.check_doors() if "by_distance" in part.doors]
        # A bias by distance reads neither queries nor keys.
        placeholder, at = some_heads(request, request.at), request.at
        keys = Keys(placeholder, placeholder, at)
        mods = [bias.fused_closure(placeholder.dtype) for part in parts for bias in part.biases(placeholder, at, keys)]
        mask = block_mask(request.mask, at, at)
        return cls(turning(request), {"score_mod": in_float32(chain_mods(mods)), "block_mask": mask})


def turning(request: HandOutRequest) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    if "turn" not in request.encoding.doors:
        return None
    # One token is rotated now, so that errors come from here and not from the first call.
    last = request.at.rows(slice(request.at.tokens - 1, None))
    request.encoding.turn_both(some_heads(request, last), some_heads(request, last), last, last)

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return request.encoding.turn_both(q, k, request.at, request.at)

    return turn


def some_heads(request: HandOutRequest, at: Positions) -> Tensor:
    """Return placeholders of queries or keys [B or 1, H, T, D], which take no memory."""
    rows = max(fact.shape[0] for fact in at.tensors().values())
    zero = torch.zeros((), device=at.order.device)
    return zero.expand(rows, request.shape.heads, at.tokens, request.shape.head_dim)
