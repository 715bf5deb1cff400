"""Attention in blocks of queries, each against its visible keys: biases need no matrix, and masks save work.

Each block goes through PyTorch's fused CPU attention, which also returns the log-sum-exp of each query. From that the
backward pass recomputes the weights of a block, so memory is linear in the number of tokens. The biases come from
SumInBlocks, and their gradients go back there.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from posenc.encoding.biases import Bias, BranchedLogits, ByDistance, ValueVectors
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_tiny_numbers
from posenc.kernels.block_sizes import SIZES, cut
from posenc.kernels.cpu.bias_in_blocks import Block, ReusedMemory, length
from posenc.kernels.cpu.biases import BiasGradient, SumInBlocks, in_blocks
from posenc.kernels.cpu.biases.distances import DistancesInRow, at_distances
from posenc.kernels.cpu.biases.products import Curves, add_to_vectors
from posenc.kernels.cpu.plan import AlignedRows, Plan, plan_for
from posenc.kernels.cpu.value_vectors import VectorsInRow, attend_with_vectors, vectors_among
from posenc.kernels.log_sums import exact_dtype, finite, merge_parts
from posenc.kernels.reference import check_heads, fit_heads, one_width
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import all_versions, check_versions
from posenc.tokens.tracing import is_traced

LOG2_E = 1 / math.log(2)

MIN_LOG2_WEIGHT = -80.0
"""Weights of 2^MIN_LOG2_WEIGHT and less are set to 0."""

QueriesAndKeys: TypeAlias = tuple[Tensor, Tensor]
"""Queries [B, H, T, D] and the keys [B, KV, S, D] that they are multiplied with."""


def why_not(request: Request) -> str | None:
    """Return why attention in blocks cannot serve, or None."""
    adds = request.encoding.needs_weights and adds_vectors(request)
    if (reason := request.why_not_fused("attention in blocks", adds_vectors=adds)) is not None:
        return reason
    if request.dropout:
        return f"attention in blocks has no dropout, got {request.dropout}; use kernel='sdpa' or 'auto', or dropout=0"
    q = request.q
    if request.device != "cpu":
        return f"attention in blocks is for the CPU, got queries on '{request.device}'; use kernel='sdpa' or 'auto'"
    inputs = request.inputs
    if inputs is not None and torch.compiler.is_compiling():
        if q is not None and q.shape[0] == 0:
            return "a compiled graph has no attention in blocks of an empty batch; use kernel='sdpa' or 'auto'"
        if row_offset(*inputs) is None:
            return (
                "in a graph that is being compiled, attention in blocks takes tokens that are known to stand in a row, "
                "and biases of the distance alone; use kernel='sdpa' or 'auto'"
            )
    elif inputs is not None and is_traced():
        return (
            "attention in blocks goes by the numbers of one call, and cannot be traced as a graph of operators; "
            "use kernel='sdpa' or 'auto'"
        )
    return None


def adds_vectors(request: Request) -> bool:
    """Whether attention in blocks adds vectors to values by distance in a call.

    It does for tokens known to be contiguous: for one last query without a block, and for several queries of many keys,
    since few keys have too few weights to be worth a block.
    """
    q, inputs = request.q, request.inputs
    if torch.compiler.is_compiling() or q is None or inputs is None or q.shape[0] == 0:
        return False
    if vectors_among(inputs.biases) is None:
        return False
    if q.shape[2] == 1:
        sees_all = inputs.mask.sees_everything(inputs.at, inputs.keys_at) and inputs.at.start is not None
        return sees_all and not torch.is_autocast_enabled("cpu")
    if inputs.keys_at.tokens < SIZES.keys_for_vectors:
        return False
    return AlignedRows.of(inputs.at, inputs.keys_at, inputs.mask) is not None


def attend(
    biases: Sequence[Bias],
    q: Tensor,
    at: Positions,
    keys: Keys,
    mask: Mask,
    *,
    scale: float,
    dropout: float,
    need_weights: bool,
    sums: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with biases, block by block. An empty row gives zeros.

    Key heads may be fewer than query heads, and are not repeated. In a compiled graph it is one operator, for tokens
    known to be contiguous.

    Limit: gradients of gradients are refused; kernel='reference' has them.
    Source: Dao 2023, arXiv:2307.08691, section 3, for the backward pass.
    """
    assert not (need_weights or dropout), "why_not('blocked') forbids this"
    check_heads(q, keys.k, keys.v)
    vectors = vectors_among(biases)
    if vectors is not None and q.shape[2] == 1:
        return attend_with_vectors(biases, q, at, keys, vectors, scale=scale, sums=sums), None
    heads, (q, k, v) = q, fit_for_fused_attention(q, keys.k, keys.v)
    if torch.compiler.is_compiling():
        offset = row_offset(biases, at, keys.at, mask)
        assert offset is not None, "why_not('blocked') forbids this"
        # The distances of contiguous tokens, far keys first.
        delta = torch.arange(q.shape[2] - 1 + offset, offset - k.shape[2], -1, device=q.device)
        values = at_distances([bias for bias in biases if isinstance(bias, ByDistance)], delta) if biases else None
        *results, total = attend_in_a_row(q, k, v, values, offset, mask.causal, mask.window, scale, sums is not None)
        output = results[0]
        if sums is not None:
            sums.append(total)
    else:
        branches = next((bias for bias in biases if isinstance(bias, BranchedLogits)), None)
        bias, plan = plan_biases(biases, heads, at, keys, mask)
        tensors = [q, k]
        for branch in () if branches is None else branches.branches:
            tensors += fit_for_fused_attention(branch.q, branch.k, keys.v)[:2]
        value_vectors = None
        if vectors is not None:
            assert plan.row is not None, "adds_vectors forbids this"
            value_vectors = VectorsInRow(vectors, plan.row, q.shape[2], k.shape[2], exact_dtype(q))
        is_small = math.prod(q.shape[:3]) * k.shape[2] <= SIZES.pairs_kept
        keeps = bias.owns and is_small and torch.is_grad_enabled()
        call = BlockedCall(plan, bias, scale, branches, value_vectors, sums=sums is not None, keeps=keeps)
        inputs = bias.inputs if value_vectors is None else (*bias.inputs, value_vectors.vectors)
        output, *total = BlockedAttention.apply(call, v, len(tensors), *tensors, *inputs)
        if sums is not None:
            sums += total
    return output[..., : keys.v.shape[-1]], None


def plan_biases(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, mask: Mask) -> tuple[SumInBlocks, Plan]:
    """Return these biases in blocks, and the plan of blocks."""
    biases = [bias for bias in biases if not isinstance(bias, (BranchedLogits, ValueVectors))]
    by_coords = any(isinstance(bias, ByDistance) for bias in biases)
    plan = plan_for(at, keys.at, mask, q.shape[0], q.shape[1], by_coords=by_coords)
    return in_blocks(biases, q, keys, plan), plan


def form_names(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, mask: Mask) -> tuple[str, ...]:
    """Return the name of the form of each bias in blocks."""
    bias, _ = plan_biases(biases, q, at, keys, mask)
    return (*bias.names, *("branches" for bias in biases if isinstance(bias, BranchedLogits)))


def fit_for_fused_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v in autocast's dtype, of one width, with contiguous channels."""

    def fit(x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:
            x = x.to(torch.get_autocast_dtype("cpu"))
        return x if x.stride(-1) == 1 else x.contiguous()

    q, k, v = one_width(fit(q), fit(k), fit(v))
    return q, k, v


class BlockPiece(NamedTuple):
    """Part of a block in which queries and keys are multiplied in one way.

    way    0: the kernel's own queries and keys; else those of a branch
    block  the queries, and the keys from first to last
    apart  mask [1 or b, 1, n, m] of pairs that belong to another way; None: no pair
    """

    way: int
    block: Block
    apart: Tensor | None = None

    def part(self, keys: slice) -> "BlockPiece":
        """Return the same piece for some of its keys."""
        first = self.block.keys.start
        apart = None if self.apart is None else self.apart[..., keys.start - first : keys.stop - first]
        return BlockPiece(self.way, self.block._replace(keys=keys), apart)


@dataclass(frozen=True)
class BlockedCall:
    """One call: the plan of blocks, the biases, and the factor of q . k.

    branches  other queries and keys for some pairs, if any
    vectors   vectors added to values by distance, if any
    sums      whether the caller needs the log-sum-exp, with -inf for empty rows
    keeps     whether the forward pass saves the biases for the backward pass
    """

    plan: Plan
    bias: SumInBlocks
    scale: float
    branches: BranchedLogits | None = None
    vectors: VectorsInRow | None = None
    sums: bool = False
    keeps: bool = False

    @without_tiny_numbers()
    @torch.autocast("cpu", enabled=False)
    def forwards(self, ways: Sequence[QueriesAndKeys], v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [B, H, T, D] and the log-sum-exp [B, H, T]. Empty rows have -inf if `sums`, else 0."""
        q, _ = ways[0]
        B, H, T, D = q.shape
        output = q.new_zeros(B, T, H, D).transpose(1, 2)  # as the projection behind it reads it
        sums = q.new_full((B, H, T), -math.inf if self.sums else 0.0, dtype=exact_dtype(q))
        curves = None if self.vectors is None else self.vectors.curves_of(q)
        for block in self.plan.blocks(self.bias.rows if curves is None else SIZES.rows_of_values):
            queries, parts = (block.batch, slice(None), block.rows), []
            cuts = self.cuts(block)
            for piece in cuts:
                q, k = ways[piece.way]
                part_q = last_first(q[queries])
                for part in self.bias.parts(piece.block):
                    tile = piece.part(part.keys)
                    if self.keeps and tile.block == piece.block and part.bias is not None and part.shift is None:
                        self.bias.cached_blocks.append(
                            (tile.block, part.bias.clone().expand(block.size[0], -1, -1, -1))
                        )
                    index = block.batch, slice(None), part.keys
                    logits, alone = (self.masked_bias(tile, part.bias, q), len(cuts) == 1 and tile.block == block)
                    alone = alone and not self.sums
                    if curves is None:
                        values, total = fused_block(part_q, k[index], v[index], logits, self.scale, alone=alone)
                    elif alone or length(curves.between_edges(tile.block)):
                        values, total = weighed_block(
                            part_q, k[index], v[index], logits, self.scale, tile.block, curves
                        )
                        total = finite(total) if alone else total
                    else:
                        # All of these keys have the same vector.
                        values, total = fused_block(part_q, k[index], v[index], logits, self.scale, alone=False)
                        vector, _ = curves.vectors_of(tile.block)
                        values = values + curves.vectors[:, vector]
                    parts.append((values, total if part.shift is None else total + part.shift))
            is_single = len(parts) == 1
            values, total = parts[0] if is_single else merge_parts(parts)
            total = total if is_single or self.sums else finite(total)
            output[queries], sums[queries] = last_first(values), last_first(total)
        return output, sums

    def full_sums(self, sums: Tensor) -> Tensor:
        """Return the log-sum-exp of the whole biases, with the subtracted maximum of each head."""
        return sums if self.bias.taken_off is None else sums + self.bias.taken_off

    @torch.autocast("cpu", enabled=False)
    def backwards(
        self,
        ways: Sequence[QueriesAndKeys],
        v: Tensor,
        output: Tensor,
        sums: Tensor,
        grad: Tensor,
        of_bias: BiasGradient | None,
        grad_of_sums: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """Return the gradients in the queries and keys of each way, in v and in the value vectors.

        The gradient of the bias is added to `of_bias`. With weights p, their gradient dp = grad . v^T and
        d = sum_j p_j dp_j = grad . out, the gradient in the logits is p (dp - d), plus p times that in the log-sum-exp.
        d is recomputed for half precision: from a rounded output, gradients of a row would not add up to 0, and a bias
        that many rows share would be off by more than its gradient. The steps are closures, since they share buffers.
        """
        q, k = ways[0]
        (B, KV, S, D), H = k.shape, q.shape[1]
        exact = exact_dtype(q)
        dqs = [torch.zeros_like(q) for q, _ in ways]
        *dks, dv = (torch.zeros(B * KV, S, D, dtype=exact, device=k.device) for _ in range(len(ways) + 1))
        rooms = ReusedMemory(q, exact), ReusedMemory(q, exact)
        curves = None if self.vectors is None else self.vectors.curves_of(grad)
        of_vectors = None if curves is None else torch.zeros_like(curves.vectors)

        def stack_rows(x: Tensor, block: Block) -> Tensor:
            # Rows of queries that share a key head are stacked.
            b, n, _ = block.size
            return last_first(x[block.batch, :, block.rows]).to(exact).reshape(b * KV, H // KV * n, -1)

        def slopes(
            piece: BlockPiece, scaled_q: Tensor, upstream: Tensor, total: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            """Return the keys of a piece, the weights p on them, and dp."""
            b, n, m = piece.block.size
            index = piece.block.batch, slice(None), piece.block.keys
            keys, values = (x[index].to(exact).reshape(b * KV, m, -1) for x in (ways[piece.way][1], v))
            weights = rooms[0].tensor(b * KV, H // KV * n, m)
            torch.bmm(scaled_q, keys.transpose(1, 2), out=weights)
            bias = self.masked_bias(piece, self.bias.block(piece.block), q)
            if bias is not None:
                weights.view(b, H, n, m).add_(bias)
            # For very low logits and -inf, exp is ten times slower than exp2.
            weights.sub_(total).mul_(LOG2_E)
            # Subnormal weights would make products many times slower, and are below the precision of float64 sums.
            torch.threshold_(weights, MIN_LOG2_WEIGHT, -math.inf).exp2_()
            # Zeros behind each row let a bias sum along diagonals without a copy.
            rows = rooms[1].tensor(*weights.shape[:2], m if of_bias is None else m + n)
            rows[..., m:] = 0.0
            of_weights = torch.bmm(upstream, values.transpose(1, 2), out=rows[..., :m])
            if curves is not None:
                of_weights.view(b, H, n, m).add_(curves.block(piece.block))
            return keys, weights, of_weights

        for block, pieces in self.pieces(H):
            (b, n, _), queries = block.size, (block.batch, slice(None), block.rows)
            upstream, outputs, total = (stack_rows(x, block) for x in (grad, output, sums[..., None]))
            of_sums = None if grad_of_sums is None else stack_rows(grad_of_sums[..., None], block)
            way_q = {way: stack_rows(ways[way][0], block) * self.scale for way in {piece.way for piece in pieces}}
            mean = (upstream * outputs).sum(-1, keepdim=True) if q.dtype == exact else None
            if mean is None and len(pieces) > 1:
                mean = torch.zeros_like(total)
                for piece in pieces:
                    _, weights, logits = slopes(piece, way_q[piece.way], upstream, total)
                    mean += (weights * logits).sum(-1, keepdim=True)
            way_dq = {way: torch.zeros_like(of_queries) for way, of_queries in way_q.items()}
            heads = slice(block.batch.start * KV, block.batch.stop * KV)
            for piece in pieces:
                m, at = piece.block.size[2], (heads, piece.block.keys)
                keys, weights, logits = slopes(piece, way_q[piece.way], upstream, total)
                mean = (weights * logits).sum(-1, keepdim=True) if mean is None else mean
                dv[at].baddbmm_(weights.transpose(1, 2), upstream)
                if curves is not None and of_vectors is not None:
                    vector, by_vector = curves.by_distance(piece.block, weights.view(b, H, n, m))
                    add_to_vectors(of_vectors, vector, by_vector, curves.last_first(piece.block))
                logits.sub_(mean if of_sums is None else mean - of_sums).mul_(weights)
                way_dq[piece.way].baddbmm_(logits, keys)
                dks[piece.way][at].baddbmm_(logits.transpose(1, 2), way_q[piece.way])
                if of_bias is not None:
                    of_bias.add(piece.block, logits.view(b, H, n, m))
            for way, slope in way_dq.items():
                dqs[way][queries] = last_first(slope.mul_(self.scale).view(b, H, n, D)).to(q.dtype)
        of_ways = [x for dq, dk in zip(dqs, dks, strict=True) for x in (dq, dk.view(k.shape).to(k.dtype))]
        return of_ways, dv.view(v.shape).to(v.dtype), of_vectors

    def pieces(self, heads: int) -> Iterator[tuple[Block, list[BlockPiece]]]:
        """Yield smaller blocks for the backward pass, each with its keys in pieces."""
        for block in self.plan.blocks(min(SIZES.rows_backwards, self.bias.rows)):
            b, n, m = block.size
            step = max(1, min(b, SIZES.pairs_backwards // (heads * n * m)))
            width = max(SIZES.narrowest, SIZES.pairs_backwards // (step * heads * n))
            for batch in cut(block.batch, step):
                part = block._replace(batch=batch)
                yield part, [piece.part(keys) for piece in self.cuts(part) for keys in cut(piece.block.keys, width)]

    def cuts(self, block: Block) -> list[BlockPiece]:
        """Return the pieces of a block, one for each way that occurs in it."""
        if self.branches is None:
            return [BlockPiece(0, block)]
        branch_masks = self.branches.branch_masks(*block)
        own_mask = ~functools.reduce(torch.logical_or, branch_masks)
        pieces = []
        for way, way_mask in enumerate([own_mask, *branch_masks]):
            # amax of bytes is many times faster than any().
            columns = way_mask.view(torch.uint8).flatten(0, -2).amax(0).nonzero()
            if len(columns):
                first, last = int(columns[0]), int(columns[-1]) + 1
                way_mask = way_mask[..., first:last]
                apart = None if bool(way_mask.view(torch.uint8).amin()) else ~way_mask[:, None]
                keys = slice(block.keys.start + first, block.keys.start + last)
                pieces.append(BlockPiece(way, block._replace(keys=keys), apart))
        return pieces

    def masked_bias(self, piece: BlockPiece, values: Tensor | None, q: Tensor) -> Tensor | None:
        """Return the bias of a piece, with -inf for hidden pairs and pairs of another way."""
        hidden = self.plan.hidden(piece.block, bias_hides=self.bias.hides_masked)
        if piece.apart is not None:
            hidden = piece.apart if hidden is None else hidden | piece.apart
        if hidden is not None:
            values = q.new_zeros(1, 1, 1, 1, dtype=exact_dtype(q)) if values is None else values
            values = values.masked_fill(last_first(hidden), -math.inf)
        if values is None or values.shape[2:] == piece.block.size[1:]:
            return values
        return values.expand(-1, -1, *piece.block.size[1:]).contiguous()


def last_first(x: Tensor) -> Tensor:
    """Reverse the queries of a block, [b, H, n, ...]: biases have the last query first."""
    return x.flip(2) if x.shape[2] > 1 else x


class BlockedAttention(torch.autograd.Function):
    """A call as one autograd function, which saves the output and the log-sum-exp of each query."""

    @staticmethod
    def forward(ctx: Any, call: BlockedCall, v: Tensor, ways: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        output, sums = call.forwards(pair_up(inputs[:ways]), v)
        ctx.call, ctx.ways, ctx.versions = call, ways, all_versions(call.plan.at, call.plan.keys_at)
        # Saved tensors notice later changes in place, and are dropped under checkpointing.
        cached_blocks, call.bias.cached_blocks = call.bias.cached_blocks, []
        ctx.cached = [block for block, _ in cached_blocks]
        ctx.save_for_backward(v, output, finite(sums) if call.sums else sums, *(x for _, x in cached_blocks), *inputs)
        call.bias.hold(())
        if not call.sums:
            return (output,)
        ctx.set_materialize_grads(False)
        return output, call.full_sums(sums)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("attention in blocks has no gradient of its gradient; use kernel='reference' for that")
        check_versions(ctx.versions, ctx.call.plan.at, ctx.call.plan.keys_at)
        v, output, sums, *tensors = ctx.saved_tensors
        cached_values, inputs = tensors[: len(ctx.cached)], tensors[len(ctx.cached) :]
        ctx.call.bias.cached_blocks = list(zip(ctx.cached, cached_values, strict=True))
        of_inputs = tuple(inputs[ctx.ways :][: sum(ctx.call.bias.counts)])
        ctx.call.bias.hold(of_inputs)
        of_bias = BiasGradient(ctx.call.bias) if any(ctx.needs_input_grad[3 + ctx.ways :]) else None
        grad, grad_of_sums = grads if ctx.call.sums else (*grads, None)
        grad = torch.zeros_like(output) if grad is None else grad
        arguments = pair_up(inputs[: ctx.ways]), v, output, sums, grad, of_bias, grad_of_sums
        of_ways, dv, of_vectors = ctx.call.backwards(*arguments)
        totals = (None,) * len(of_inputs) if of_bias is None else of_bias.total()
        ctx.call.bias.cached_blocks = []
        ctx.call.bias.hold(())
        return None, dv, None, *of_ways, *totals, *(() if of_vectors is None else (of_vectors,))


def pair_up(tensors: Sequence[Tensor]) -> list[QueriesAndKeys]:
    """Return pairs of queries and keys, one for each way."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def fused_block(
    q: Tensor, k: Tensor, v: Tensor, logits: Tensor | None, scale: float, *, alone: bool
) -> tuple[Tensor, Tensor]:
    """Run PyTorch's fused attention on one block; return the output and the log-sum-exp.

    An empty row gives zeros, and the log-sum-exp 0 if the block is alone, or -inf if it will be merged.
    """
    if not SUPPORTS_GROUPED_HEADS and q.shape[1] != k.shape[1]:
        k, v = fit_heads(q, k, v)
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=logits, scale=scale)
    if alone or logits is None:
        return output, sums
    rows = logits[:, :, :1] if logits.stride(2) == 0 else logits  # values that all queries share are read once
    return output, sums.masked_fill(rows.amax(-1) == -math.inf, -math.inf)


def weighed_block(
    q: Tensor, k: Tensor, v: Tensor, logits: Tensor | None, scale: float, block: Block, curves: Curves
) -> tuple[Tensor, Tensor]:
    """Compute the same with vectors added to values, from the weights; the log-sum-exp of empty rows is -inf."""
    (b, H, n, D), (KV, m), exact = q.shape, k.shape[1:3], exact_dtype(q)
    queries, keys, values = (x.to(exact).reshape(b * KV, -1, D) for x in (q, k, v))
    weights = torch.bmm(queries * scale, keys.transpose(1, 2))
    by_pair = weights.view(b, H, n, m)
    if logits is not None:
        by_pair.add_(logits)
    largest = weights.amax(-1, keepdim=True)
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    torch.threshold_(weights.sub_(largest).mul_(LOG2_E), MIN_LOG2_WEIGHT, -math.inf).exp2_()
    total = weights.sum(-1, keepdim=True)
    vector, by_vector = curves.by_distance(block, by_pair)
    weighted_values = torch.bmm(weights, values).view(b, H, n, D) + by_vector @ curves.vectors[:, vector]
    weighted_values /= total.masked_fill(total == 0, 1.0).view(b, H, n, 1)
    return weighted_values.to(q.dtype), (largest + total.log()).view(b, H, n)


# In a compiled graph: contiguous tokens, as one operator.


def row_offset(biases: Sequence[Bias], at: Positions, keys_at: Positions, mask: Mask) -> int | None:
    """Return the offset if only the distances i - j + offset matter; None if unknown."""
    if mask.tensor is not None or mask.prefix:
        return None
    if not all(isinstance(bias, ByDistance) and bias.axes <= 1 for bias in biases):
        return None
    if at is keys_at and at.contiguous and (at.unit_step or not biases):
        return 0
    return None if at.start is None or keys_at.start is None else at.start - keys_at.start


SUPPORTS_GROUPED_HEADS = TorchVersion(torch.__version__) >= "2.9"
"""Whether PyTorch's fused CPU attention is right if several query heads share a key head."""


TENSOR_SCHEMA = "Tensor q, Tensor k, Tensor v, Tensor? values"
RULE_SCHEMA = "SymInt offset, bool causal, SymInt? window, float scale, bool sums"
"""The arguments of `call_in_a_row` that are no tensors."""


@torch.library.custom_op(
    "posenc::attend_in_a_row", mutates_args=(), schema=f"({TENSOR_SCHEMA}, {RULE_SCHEMA}) -> (Tensor, Tensor, Tensor)"
)
def attend_in_a_row(q: Tensor, k: Tensor, v: Tensor, values: Tensor | None, *rule: Any) -> tuple[Tensor, ...]:
    """Compute attention for contiguous tokens and a bias [H, T + S - 1] of their distances.

    Return the output, the log-sum-exp for the backward pass, and that for the caller, or an empty tensor.
    """
    call = call_in_a_row(q, k, values, *rule)
    output, sums = call.forwards([(q, k)], v)
    return output, finite(sums), call.full_sums(sums) if call.sums else sums.new_empty(0)


def call_in_a_row(
    q: Tensor, k: Tensor, values: Tensor | None, offset: int, causal: bool, window: int | None, scale: float, sums: bool
) -> BlockedCall:
    T, S = q.shape[2], k.shape[2]
    at, keys_at = Positions.count(T, max(offset, 0)), Positions.count(S, max(-offset, 0))
    plan = plan_for(at, keys_at, Mask(causal=causal, window=window), q.shape[0], q.shape[1], by_coords=True)
    in_row = DistancesInRow(values, range(T - 1 + offset, offset - S, -1), q, plan)
    return BlockedCall(plan, SumInBlocks([], q, in_row), scale, sums=sums)


@attend_in_a_row.register_fake
def fake_attend(q, k, v, values, *rule):
    B, H, T, D = q.shape
    sums = q.new_empty(B, H, T, dtype=exact_dtype(q))
    return q.new_empty(B, T, H, D).transpose(1, 2), sums, sums.new_empty(sums.shape if rule[-1] else 0)


@torch.library.custom_op(
    "posenc::attend_in_a_row_backwards",
    mutates_args=(),
    schema=f"(Tensor grad, {TENSOR_SCHEMA}, Tensor out, Tensor total, Tensor of_sums, {RULE_SCHEMA})"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def attend_in_a_row_backwards(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, values: Tensor | None, output: Tensor, sums: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of `attend_in_a_row` in q, k, v and values; the last is empty without values."""
    of_sums, *rule = rest
    call = call_in_a_row(q, k, values, *rule)
    of_bias = None if values is None else BiasGradient(call.bias)
    (dq, dk), dv, _ = call.backwards([(q, k)], v, output, sums, grad, of_bias, of_sums if call.sums else None)
    of_values = None if of_bias is None else of_bias.total()[0]
    return dq, dk, dv, dq.new_empty(0) if of_values is None else of_values


@attend_in_a_row_backwards.register_fake
def fake_attend_backwards(grad, q, k, v, values, *rest):
    of_values = q.new_empty(0) if values is None else torch.empty_like(values)
    return torch.empty_like(q), torch.empty(k.shape, dtype=k.dtype), torch.empty(v.shape, dtype=v.dtype), of_values


def save_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, values, *ctx.rule = inputs
    ctx.save_for_backward(q, k, v, values, *output[:2])


def differentiate_row(ctx: Any, grad: Tensor, _: Tensor, grad_of_sums: Tensor) -> tuple:
    *slopes, of_values = attend_in_a_row_backwards(grad, *ctx.saved_tensors, grad_of_sums, *ctx.rule)
    return *slopes, None if ctx.saved_tensors[3] is None else of_values, *(None for _ in ctx.rule)


attend_in_a_row.register_autograd(differentiate_row, setup_context=save_context)
