"""Attention that breaks a stick in blocks: from the nearest keys to the farthest, with what is left for each query.

A query's share of a key is beta = sigmoid(logit), of what nearer keys have left. The logarithm of what is left is a sum
over these, of softplus(logit) each, which goes on from block to block; once all queries of a block have less than
2^LEAST left, farther keys get nothing and are not read. The backward pass makes the shares of a block again, and goes
back from the farthest key to the nearest.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.biases import Bias, Branched
from posenc.kernels.bias_in_blocks import BiasGradient, Block, cut
from posenc.kernels.biases import SumInBlocks
from posenc.kernels.block_sizes import SIZES
from posenc.kernels.blocked import LEAST, LOG2_E, as_fused_attention_takes, exact_dtype, how, last_first
from posenc.kernels.plan import Plan
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions
from posenc.shared_tables import check_versions, versions
from posenc.watched import is_transformed, is_written_down


def attend(
    biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, mask: Mask, *, scale: float, itself: bool
) -> tuple[Tensor, tuple[str, ...]] | None:
    """What each query [B, H, T, D] takes, and how each bias was had; None where tokens do not stand in rows.

    A key takes sigmoid(logit) of what the keys between it and the query have left. `itself` says whether a query's own
    token is one of its keys. Nobody sees the future, whatever the mask.

    Limit: gradients of gradients are refused; kernel='reference' has them.
    """
    if q.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed() or is_written_down():
        return None
    if not q.shape[0] or any(isinstance(bias, Branched) for bias in biases):
        return None
    bias, plan = how(biases, q, at, keys, replace(mask, causal=True, prefix=0))
    if plan.runs is None:
        return None
    fitted = as_fused_attention_takes(q, keys.k, keys.v)
    call = NearestFirst(plan, bias, scale, itself)
    return Differentiable.apply(call, *fitted, *bias.inputs)[..., : keys.v.shape[-1]], bias.names


class Piece(NamedTuple):
    """Some keys of a block, and what its queries, last first, take of them.

    k        the keys [b KV, m, D]
    shares   of what is left when a key's turn comes, [b KV, queries of a key head, m], the nearest key first
    weights  of all, in the same order
    """

    block: Block
    k: Tensor
    shares: Tensor
    weights: Tensor


@dataclass(frozen=True)
class NearestFirst:
    """One call: which blocks there are, what is added to their logits, and the factor of q . k."""

    plan: Plan
    bias: SumInBlocks
    scale: float
    itself: bool

    @torch.autocast("cpu", enabled=False)
    def forwards(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What is taken, [B, H, T, D]."""
        (B, H, T, D), KV = q.shape, k.shape[1]
        out = q.new_zeros(B, T, H, D).transpose(1, 2)  # as the projection behind it reads it
        for block in self.blocks(H):
            b, n, _ = block.size
            taken = q.new_zeros(b * KV, H // KV * n, D, dtype=exact_dtype(q))
            for piece in self.pieces(block, q, k):
                # The smallest first, which are rounded least.
                taken.baddbmm_(piece.weights.flip(2), of_keys(v, piece.block))
            out[block.batch, :, block.rows] = last_first(taken.view(b, H, n, D))
        return out

    @torch.autocast("cpu", enabled=False)
    def backwards(
        self, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, of_bias: BiasGradient | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients in q, k and v; that of the bias is added to its collector.

        With weights w, shares b and dw = grad . v^T, the logit of key j has w_j dw_j - b_j (sum of w_l dw_l over l no
        nearer than j): a larger share takes from all that come later.
        """
        (B, H, _, D), KV = q.shape, k.shape[1]
        dq = torch.zeros_like(q)
        dk, dv = (k.new_zeros(B * KV, *k.shape[2:], dtype=exact_dtype(q)) for _ in range(2))
        for block in self.blocks(H):
            b, n, _ = block.size
            upstream, asked = (self.of_queries(x, block, KV) for x in (grad, q))
            found, farther = torch.zeros_like(asked), upstream.new_zeros(*upstream.shape[:2], 1)
            for piece in reversed(list(self.pieces(block, q, k))):
                m = piece.block.size[2]
                at = slice(block.batch.start * KV, block.batch.stop * KV), piece.block.keys
                # Sums go back from the farthest key.
                shares, weights = piece.shares.flip(2), piece.weights.flip(2)
                dv[at].baddbmm_(weights.mT, upstream)
                # A bias may sum along diagonals, which zeros behind each row make columns without a copy.
                room = upstream.new_empty(*upstream.shape[:2], m if of_bias is None else m + n)
                room[..., m:] = 0.0
                slopes = torch.bmm(upstream, of_keys(v, piece.block).mT, out=room[..., :m]).mul_(weights)
                taken = slopes.cumsum(-1).add_(farther)
                farther = taken[..., -1:].clone()
                slopes.addcmul_(shares, taken, value=-1)
                found.baddbmm_(slopes, piece.k)
                dk[at].baddbmm_(slopes.mT, asked, alpha=self.scale)
                if of_bias is not None:
                    of_bias.add(piece.block, slopes.view(b, H, n, m))
            dq[block.batch, :, block.rows] = last_first(found.mul_(self.scale).view(b, H, n, D)).to(q.dtype)
        return dq, dk.view(k.shape).to(k.dtype), dv.view(v.shape).to(v.dtype)

    def blocks(self, heads: int) -> Iterator[Block]:
        """The blocks, of no more rows of the batch than the caches hold."""
        for block in self.plan.blocks(SIZES.rows_backwards):
            step = max(1, SIZES.pairs_nearest // (heads * block.size[1] * SIZES.narrowest))
            for batch in cut(block.batch, step):
                yield block._replace(batch=batch)

    def pieces(self, block: Block, q: Tensor, k: Tensor) -> Iterator[Piece]:
        """The keys of a block, some at a time, from the nearest to the farthest that still get something."""
        asked = self.of_queries(q, block, k.shape[1]) * self.scale
        left = asked.new_zeros(*asked.shape[:2], 1)  # as what has been taken: minus the logarithm
        for keys in reversed(cut(block.keys, SIZES.narrowest)):
            piece = block._replace(keys=keys)
            near = of_keys(k, piece)
            logits = asked @ near.flip(1).mT
            self.add_to(logits.view(block.size[0], -1, *piece.size[1:]), piece)
            refused = torch.empty_like(logits)
            refused[..., :1] = left
            # As in `blocked`: of -inf exp is ten times slower than exp2, and so are products with the least numbers.
            grown = (logits * LOG2_E).exp2_()
            torch.log1p(grown[..., :-1], out=refused[..., 1:])
            torch.cumsum(refused, -1, out=refused)
            left = refused[..., -1:] + grown[..., -1:].log1p()
            weights = torch.threshold_(refused.mul_(-LOG2_E), LEAST, -math.inf).exp2_()
            shares = logits.sigmoid_()
            yield Piece(piece, near, shares, weights.mul_(shares))
            if float(left.min()) * -LOG2_E < LEAST:
                return

    def add_to(self, logits: Tensor, block: Block) -> None:
        """Add the bias to the logits [b, H, n, m] of a block, nearest key first; -inf where a query takes nothing."""
        if self.bias.names:
            values = self.bias.block(block)
            assert values is not None
            logits += values.flip(-1)
            if (shared := self.bias.taken_off) is not None:
                logits += shared[..., None]
        _, n, m = block.size
        last = block.rows.stop - 1 - (block.keys.stop - 1) + self.plan.offset(block)
        window, given = self.plan.mask.window, self.plan.mask.given
        nearest, farthest = last - (n - 1), last + m - 1
        first = 0 if self.itself else 1
        if nearest < first or (window is not None and farthest >= window):
            rows, columns = (torch.arange(size, device=logits.device) for size in (n, m))
            distance = last - rows[:, None] + columns
            hidden = distance < first
            hidden = hidden if window is None else hidden | (distance >= window)
            logits.masked_fill_(hidden, -math.inf)
        if given is not None:
            hidden = ~self.plan.mask.part(*block).allowed(*block.positions(self.plan.at, self.plan.keys_at))
            logits.masked_fill_(hidden.flip(2, 3), -math.inf)

    def of_queries(self, x: Tensor, block: Block, key_heads: int) -> Tensor:
        """Queries, or what is of their shape, last first: those that share a key head stand below one another."""
        x = last_first(x[block.batch, :, block.rows])
        return x.to(exact_dtype(x)).reshape(x.shape[0] * key_heads, -1, x.shape[-1])


def of_keys(x: Tensor, block: Block) -> Tensor:
    """Keys or values [b KV, m, D] of a block."""
    return x[block.batch, :, block.keys].to(exact_dtype(x)).flatten(0, 1)


class Differentiable(torch.autograd.Function):
    """A call as one step of the graph, which keeps no more than what it was given."""

    @staticmethod
    def forward(ctx: Any, call: NearestFirst, q: Tensor, k: Tensor, v: Tensor, *inputs: Tensor) -> Tensor:
        ctx.call, ctx.versions = call, versions(call.plan.at, call.plan.keys_at)
        # The inputs of the bias are kept by the bias; here it is seen when somebody changes them in between.
        ctx.save_for_backward(q, k, v, *inputs)
        return call.forwards(q, k, v)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "attention in blocks has no gradient of its gradient; use kernel='reference' where one is wanted"
            )
        check_versions(ctx.versions, ctx.call.plan.at, ctx.call.plan.keys_at)
        q, k, v, *inputs = ctx.saved_tensors
        of_bias = ctx.call.bias.gradient() if any(ctx.needs_input_grad[4:]) else None
        slopes = ctx.call.backwards(q, k, v, *grads, of_bias)
        return None, *slopes, *((None,) * len(inputs) if of_bias is None else of_bias.total())
