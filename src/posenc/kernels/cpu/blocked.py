"""Attention in blocks of queries, each against the keys that it may see: biases cost no matrix, and masks save work.

Each block goes through PyTorch's fused CPU attention, which also gives the logarithm of each query's sum of
exponentials. From that the backward pass makes the weights of a block again, so that memory grows with the number of
tokens, not with its square. What is added to the logits comes from a bias in blocks, and its gradient goes back there.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from posenc.encoding.biases import Bias, Branched, ByDistance, ValueVectors
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_tiny_numbers
from posenc.kernels.block_sizes import SIZES, cut
from posenc.kernels.cpu.bias_in_blocks import Block, Room, length
from posenc.kernels.cpu.biases import BiasGradient, SumInBlocks, in_blocks
from posenc.kernels.cpu.biases.distances import DistancesInRow, at_distances
from posenc.kernels.cpu.biases.products import Curves, add_to_vectors
from posenc.kernels.cpu.plan import Plan, Row, plan_for
from posenc.kernels.cpu.value_vectors import VectorsInRow, attend_with_vectors, vectors_among
from posenc.kernels.log_sums import exact_dtype, finite, merged
from posenc.kernels.reference import check_heads, fit_heads, one_width
from posenc.kernels.request import Request
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import check_versions, versions
from posenc.tokens.watched import is_written_down

LOG2_E = 1 / math.log(2)

LEAST = -80.0
"""Weights of 2^LEAST and less are 0 in the backward pass."""

Way: TypeAlias = tuple[Tensor, Tensor]
"""Queries [B, H, T, D] and keys [B, KV, S, D] that meet."""


def why_not(request: Request) -> str | None:
    """Why attention in blocks cannot serve, or None."""
    adds = request.encoding.needs_weights and adds_vectors(request)
    if (reason := request.against("attention in blocks", adds_vectors=adds)) is not None:
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
        if offset_in_a_row(*inputs) is None:
            return (
                "in a graph that is being compiled, attention in blocks takes tokens that are known to stand in a row, "
                "and biases of the distance alone; use kernel='sdpa' or 'auto'"
            )
    elif inputs is not None and is_written_down():
        return (
            "attention in blocks goes by the numbers of one call, and cannot be written down as a graph of operators; "
            "use kernel='sdpa' or 'auto'"
        )
    return None


def adds_vectors(request: Request) -> bool:
    """Whether attention in blocks adds vectors to the values of a call by their distance.

    It does where tokens are known to stand in a row: for the last one alone without a block, and for several queries of
    many keys, since few have too few weights to be worth one.
    """
    q, inputs = request.q, request.inputs
    if torch.compiler.is_compiling() or q is None or inputs is None or q.shape[0] == 0:
        return False
    if vectors_among(inputs.biases) is None:
        return False
    if q.shape[2] == 1:
        seen = inputs.mask.sees_everything(inputs.at, inputs.keys_at) and inputs.at.start is not None
        return seen and not torch.is_autocast_enabled("cpu")
    if inputs.keys_at.tokens < SIZES.keys_for_vectors:
        return False
    return Row.of(inputs.at, inputs.keys_at, inputs.mask) is not None


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
    """Attention with biases, block by block. A row that may see nothing gives zeros.

    Key heads may be fewer than query heads; nothing is repeated for them. In a graph that is being compiled it is one
    operator, for tokens that are known to stand in a row.

    Limit: gradients of gradients are refused; kernel='reference' has them.
    Source: Dao 2023, arXiv:2307.08691, section 3, for the backward pass.
    """
    assert not (need_weights or dropout), "why_not('blocked') forbids this"
    check_heads(q, keys.k, keys.v)
    vectors = vectors_among(biases)
    if vectors is not None and q.shape[2] == 1:
        return attend_with_vectors(biases, q, at, keys, vectors, scale=scale, sums=sums), None
    heads, (q, k, v) = q, as_fused_attention_takes(q, keys.k, keys.v)
    if torch.compiler.is_compiling():
        offset = offset_in_a_row(biases, at, keys.at, mask)
        assert offset is not None, "why_not('blocked') forbids this"
        # At the distances of tokens in a row, far keys first.
        delta = torch.arange(q.shape[2] - 1 + offset, offset - k.shape[2], -1, device=q.device)
        values = at_distances([bias for bias in biases if isinstance(bias, ByDistance)], delta) if biases else None
        *found, total = attend_in_a_row(q, k, v, values, offset, mask.causal, mask.window, scale, sums is not None)
        out = found[0]
        if sums is not None:
            sums.append(total)
    else:
        branched = next((bias for bias in biases if isinstance(bias, Branched)), None)
        bias, plan = how(biases, heads, at, keys, mask)
        given = [q, k]
        for branch in () if branched is None else branched.branches:
            given += as_fused_attention_takes(branch.q, branch.k, keys.v)[:2]
        added = None
        if vectors is not None:
            assert plan.row is not None, "adds_vectors forbids this"
            added = VectorsInRow(vectors, plan.row, q.shape[2], k.shape[2], exact_dtype(q))
        few = math.prod(q.shape[:3]) * k.shape[2] <= SIZES.pairs_kept
        keeps = bias.owns and few and torch.is_grad_enabled()
        call = InBlocks(plan, bias, scale, branched, added, sums=sums is not None, keeps=keeps)
        inputs = bias.inputs if added is None else (*bias.inputs, added.vectors)
        out, *total = Differentiable.apply(call, v, len(given), *given, *inputs)
        if sums is not None:
            sums += total
    return out[..., : keys.v.shape[-1]], None


def how(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, mask: Mask) -> tuple[SumInBlocks, Plan]:
    """How these biases are had in blocks, and which blocks there are."""
    biases = [bias for bias in biases if not isinstance(bias, (Branched, ValueVectors))]
    by_coords = any(isinstance(bias, ByDistance) for bias in biases)
    plan = plan_for(at, keys.at, mask, q.shape[0], q.shape[1], by_coords=by_coords)
    return in_blocks(biases, q, keys, plan), plan


def ways(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, mask: Mask) -> tuple[str, ...]:
    """How each of these biases is had, in words."""
    bias, _ = how(biases, q, at, keys, mask)
    return (*bias.names, *("branches" for bias in biases if isinstance(bias, Branched)))


def as_fused_attention_takes(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v in the dtype that autocast wants, of one width, and the channels of each head side by side in memory."""

    def fit(x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:
            x = x.to(torch.get_autocast_dtype("cpu"))
        return x if x.stride(-1) == 1 else x.contiguous()

    q, k, v = one_width(fit(q), fit(k), fit(v))
    return q, k, v


class Cut(NamedTuple):
    """Keys of a block that queries meet in one way.

    way    0: the kernel's own queries and keys; else those of a branch
    block  the queries, and the keys from the first to the last
    apart  the pairs among these that meet in another way, boolean [1 or b, 1, n, m]; None where there are none
    """

    way: int
    block: Block
    apart: Tensor | None = None

    def narrowed(self, keys: slice) -> "Cut":
        """The same for some of its keys."""
        first = self.block.keys.start
        apart = None if self.apart is None else self.apart[..., keys.start - first : keys.stop - first]
        return Cut(self.way, self.block._replace(keys=keys), apart)


@dataclass(frozen=True)
class InBlocks:
    """One call: which blocks there are, what is added to their logits, and the factor of q . k.

    branched  what says which pairs meet with other queries and keys than the kernel's own; None where none do
    vectors   what is added to values by their distance; None where nothing is
    sums      whether somebody goes on with the sums of exponentials, for whom that of no keys is 0
    keeps     whether the backward pass has what is added to the logits from the forward pass
    """

    plan: Plan
    bias: SumInBlocks
    scale: float
    branched: Branched | None = None
    vectors: VectorsInRow | None = None
    sums: bool = False
    keeps: bool = False

    @without_tiny_numbers()
    @torch.autocast("cpu", enabled=False)
    def forwards(self, ways: Sequence[Way], v: Tensor) -> tuple[Tensor, Tensor]:
        """The output [B, H, T, D], and the logarithm of each query's sum of exponentials [B, H, T].

        For a query that sees no key it is -inf where the sums are gone on with, else 0.
        """
        q, _ = ways[0]
        B, H, T, D = q.shape
        out = q.new_zeros(B, T, H, D).transpose(1, 2)  # as the projection behind it reads it
        sums = q.new_full((B, H, T), -math.inf if self.sums else 0.0, dtype=exact_dtype(q))
        curves = None if self.vectors is None else self.vectors.asked_by(q)
        for block in self.plan.blocks(self.bias.rows if curves is None else SIZES.rows_of_values):
            queries, parts = (block.batch, slice(None), block.rows), []
            cuts = self.cuts(block)
            for met in cuts:
                q, k = ways[met.way]
                asked = last_first(q[queries])
                for part in self.bias.parts(met.block):
                    here = met.narrowed(part.keys)
                    if self.keeps and here.block == met.block and part.bias is not None and part.shift is None:
                        self.bias.kept.append((here.block, part.bias.clone().expand(block.size[0], -1, -1, -1)))
                    seen = block.batch, slice(None), part.keys
                    logits, alone = self.added(here, part.bias, q), len(cuts) == 1 and here.block == block
                    alone = alone and not self.sums
                    if curves is None:
                        taken, total = fused(asked, k[seen], v[seen], logits, self.scale, alone=alone)
                    elif alone or length(curves.between_edges(here.block)):
                        taken, total = weighed(asked, k[seen], v[seen], logits, self.scale, here.block, curves)
                        total = finite(total) if alone else total
                    else:
                        # All of these keys have the same vector.
                        taken, total = fused(asked, k[seen], v[seen], logits, self.scale, alone=False)
                        known, _ = curves.met(here.block)
                        taken = taken + curves.vectors[:, known]
                    parts.append((taken, total if part.shift is None else total + part.shift))
            one = len(parts) == 1
            taken, total = parts[0] if one else merged(parts)
            total = total if one or self.sums else finite(total)
            out[queries], sums[queries] = last_first(taken), last_first(total)
        return out, sums

    def in_full(self, sums: Tensor) -> Tensor:
        """The logarithms of sums, of biases as they are."""
        return sums if self.bias.taken_off is None else sums + self.bias.taken_off

    @torch.autocast("cpu", enabled=False)
    def backwards(
        self,
        ways: Sequence[Way],
        v: Tensor,
        out: Tensor,
        sums: Tensor,
        grad: Tensor,
        of_bias: BiasGradient | None,
        grad_of_sums: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """The gradients in the queries and keys of each way, in v, and in the vectors that are added to values; that of
        the bias is added to its collector.

        With weights p, their gradient dp = grad . v^T and d = sum_j p_j dp_j = grad . out, the logits have p (dp - d);
        and p times the gradient of their sum's logarithm, where there is one.
        An output in half precision is rounded too far for d: what the logits of a row have would no longer add up to 0,
        and a bias that many rows share would be off by more than its gradient.
        """
        q, k = ways[0]
        (B, KV, S, D), H = k.shape, q.shape[1]
        exact = exact_dtype(q)
        dqs = [torch.zeros_like(q) for q, _ in ways]
        *dks, dv = (torch.zeros(B * KV, S, D, dtype=exact, device=k.device) for _ in range(len(ways) + 1))
        rooms = Room(q, exact), Room(q, exact)
        curves = None if self.vectors is None else self.vectors.asked_by(grad)
        of_vectors = None if curves is None else torch.zeros_like(curves.vectors)

        def stacked(x: Tensor, block: Block) -> Tensor:
            # The queries that share a key head stand below one another.
            b, n, _ = block.size
            return last_first(x[block.batch, :, block.rows]).to(exact).reshape(b * KV, H // KV * n, -1)

        def slopes(piece: Cut, asked: Tensor, upstream: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """The keys of a piece, the weights p on them, and dp."""
            b, n, m = piece.block.size
            seen = piece.block.batch, slice(None), piece.block.keys
            keys, values = (x[seen].to(exact).reshape(b * KV, m, -1) for x in (ways[piece.way][1], v))
            weights = rooms[0].of(b * KV, H // KV * n, m)
            torch.bmm(asked, keys.transpose(1, 2), out=weights)
            added = self.added(piece, self.bias.block(piece.block), q)
            if added is not None:
                weights.view(b, H, n, m).add_(added)
            # Many logits are far down or -inf, where exp is ten times slower than exp2.
            weights.sub_(total).mul_(LOG2_E)
            # Numbers below the normal ones make a product many times slower, and float64 does not see these any more.
            torch.threshold_(weights, LEAST, -math.inf).exp2_()
            # A bias may sum along diagonals, which zeros behind each row make columns without a copy.
            rows = rooms[1].of(*weights.shape[:2], m if of_bias is None else m + n)
            rows[..., m:] = 0.0
            of_weights = torch.bmm(upstream, values.transpose(1, 2), out=rows[..., :m])
            if curves is not None:
                of_weights.view(b, H, n, m).add_(curves.block(piece.block))
            return keys, weights, of_weights

        for block, pieces in self.pieces(H):
            (b, n, _), queries = block.size, (block.batch, slice(None), block.rows)
            upstream, taken, total = (stacked(x, block) for x in (grad, out, sums[..., None]))
            of_sums = None if grad_of_sums is None else stacked(grad_of_sums[..., None], block)
            asked = {way: stacked(ways[way][0], block) * self.scale for way in {piece.way for piece in pieces}}
            mean = (upstream * taken).sum(-1, keepdim=True) if q.dtype == exact else None
            if mean is None and len(pieces) > 1:
                mean = torch.zeros_like(total)
                for piece in pieces:
                    _, weights, logits = slopes(piece, asked[piece.way], upstream, total)
                    mean += (weights * logits).sum(-1, keepdim=True)
            found = {way: torch.zeros_like(of_queries) for way, of_queries in asked.items()}
            heads = slice(block.batch.start * KV, block.batch.stop * KV)
            for piece in pieces:
                m, at = piece.block.size[2], (heads, piece.block.keys)
                keys, weights, logits = slopes(piece, asked[piece.way], upstream, total)
                mean = (weights * logits).sum(-1, keepdim=True) if mean is None else mean
                dv[at].baddbmm_(weights.transpose(1, 2), upstream)
                if curves is not None and of_vectors is not None:
                    known, by_vector = curves.by_distance(piece.block, weights.view(b, H, n, m))
                    add_to_vectors(of_vectors, known, by_vector, curves.last_first(piece.block))
                logits.sub_(mean if of_sums is None else mean - of_sums).mul_(weights)
                found[piece.way].baddbmm_(logits, keys)
                dks[piece.way][at].baddbmm_(logits.transpose(1, 2), asked[piece.way])
                if of_bias is not None:
                    of_bias.add(piece.block, logits.view(b, H, n, m))
            for way, slope in found.items():
                dqs[way][queries] = last_first(slope.mul_(self.scale).view(b, H, n, D)).to(q.dtype)
        of_ways = [x for dq, dk in zip(dqs, dks, strict=True) for x in (dq, dk.view(k.shape).to(k.dtype))]
        return of_ways, dv.view(v.shape).to(v.dtype), of_vectors

    def pieces(self, heads: int) -> Iterator[tuple[Block, list[Cut]]]:
        """The blocks again, of fewer rows of the batch, and each with its keys in pieces."""
        for block in self.plan.blocks(min(SIZES.rows_backwards, self.bias.rows)):
            b, n, m = block.size
            step = max(1, min(b, SIZES.pairs_backwards // (heads * n * m)))
            width = max(SIZES.narrowest, SIZES.pairs_backwards // (step * heads * n))
            for batch in cut(block.batch, step):
                few = block._replace(batch=batch)
                yield few, [met.narrowed(keys) for met in self.cuts(few) for keys in cut(met.block.keys, width)]

    def cuts(self, block: Block) -> list[Cut]:
        """The block by the ways in which its queries meet keys; where it is one way, the block itself."""
        if self.branched is None:
            return [Cut(0, block)]
        others = self.branched.holding(*block)
        own = ~functools.reduce(torch.logical_or, others)
        found = []
        for way, here in enumerate([own, *others]):
            # The largest of bytes is found many times faster than whether any is true.
            columns = here.view(torch.uint8).flatten(0, -2).amax(0).nonzero()
            if len(columns):
                first, last = int(columns[0]), int(columns[-1]) + 1
                here = here[..., first:last]
                apart = None if bool(here.view(torch.uint8).amin()) else ~here[:, None]
                keys = slice(block.keys.start + first, block.keys.start + last)
                found.append(Cut(way, block._replace(keys=keys), apart))
        return found

    def added(self, met: Cut, values: Tensor | None, q: Tensor) -> Tensor | None:
        """What is added to the logits of a block: the bias, and -inf where a query may not see a key in this way."""
        hidden = self.plan.hidden(met.block, masked=self.bias.masked)
        if met.apart is not None:
            hidden = met.apart if hidden is None else hidden | met.apart
        if hidden is not None:
            values = q.new_zeros(1, 1, 1, 1, dtype=exact_dtype(q)) if values is None else values
            values = values.masked_fill(last_first(hidden), -math.inf)
        if values is None or values.shape[2:] == met.block.size[1:]:
            return values
        return values.expand(-1, -1, *met.block.size[1:]).contiguous()


def last_first(x: Tensor) -> Tensor:
    """The queries of a block, [b, H, n, ...], last query first, as biases have them; or back."""
    return x.flip(2) if x.shape[2] > 1 else x


class Differentiable(torch.autograd.Function):
    """A call as one step of the graph, which keeps no more than the output and a number for each query."""

    @staticmethod
    def forward(ctx: Any, call: InBlocks, v: Tensor, ways: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        out, sums = call.forwards(pairs(inputs[:ways]), v)
        ctx.call, ctx.ways, ctx.versions = call, ways, versions(call.plan.at, call.plan.keys_at)
        # Here it is seen when somebody changes the inputs in between, and a checkpoint drops them.
        kept, call.bias.kept = call.bias.kept, []
        ctx.kept = [block for block, _ in kept]
        ctx.save_for_backward(v, out, finite(sums) if call.sums else sums, *(x for _, x in kept), *inputs)
        call.bias.hold(())
        if not call.sums:
            return (out,)
        ctx.set_materialize_grads(False)
        return out, call.in_full(sums)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "attention in blocks has no gradient of its gradient; use kernel='reference' where one is wanted"
            )
        check_versions(ctx.versions, ctx.call.plan.at, ctx.call.plan.keys_at)
        v, out, sums, *saved = ctx.saved_tensors
        kept, inputs = saved[: len(ctx.kept)], saved[len(ctx.kept) :]
        ctx.call.bias.kept = list(zip(ctx.kept, kept, strict=True))
        of_inputs = tuple(inputs[ctx.ways :][: sum(ctx.call.bias.counts)])
        ctx.call.bias.hold(of_inputs)
        of_bias = BiasGradient(ctx.call.bias) if any(ctx.needs_input_grad[3 + ctx.ways :]) else None
        grad, grad_of_sums = grads if ctx.call.sums else (*grads, None)
        grad = torch.zeros_like(out) if grad is None else grad
        given = pairs(inputs[: ctx.ways]), v, out, sums, grad, of_bias, grad_of_sums
        of_ways, dv, of_vectors = ctx.call.backwards(*given)
        totals = (None,) * len(of_inputs) if of_bias is None else of_bias.total()
        ctx.call.bias.kept = []
        ctx.call.bias.hold(())
        return None, dv, None, *of_ways, *totals, *(() if of_vectors is None else (of_vectors,))


def pairs(tensors: Sequence[Tensor]) -> list[Way]:
    """Queries and keys in pairs, one for each way."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def fused(
    q: Tensor, k: Tensor, v: Tensor, logits: Tensor | None, scale: float, *, alone: bool
) -> tuple[Tensor, Tensor]:
    """PyTorch's fused attention on one block: what is taken, and the logarithm of each query's sum of exponentials.

    A query that sees no key takes zeros, with the logarithm 0; or -inf when the block is not alone but to be merged.
    """
    if not GROUPED and q.shape[1] != k.shape[1]:
        k, v = fit_heads(q, k, v)
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=logits, scale=scale)
    if alone or logits is None:
        return out, sums
    rows = logits[:, :, :1] if logits.stride(2) == 0 else logits  # values that all queries share are read once
    return out, sums.masked_fill(rows.amax(-1) == -math.inf, -math.inf)


def weighed(
    q: Tensor, k: Tensor, v: Tensor, logits: Tensor | None, scale: float, block: Block, curves: Curves
) -> tuple[Tensor, Tensor]:
    """The same with vectors added to values, which takes the weights; the logarithm of no keys is -inf."""
    (b, H, n, D), (KV, m), exact = q.shape, k.shape[1:3], exact_dtype(q)
    asked, keys, values = (x.to(exact).reshape(b * KV, -1, D) for x in (q, k, v))
    weights = torch.bmm(asked * scale, keys.transpose(1, 2))
    by_pair = weights.view(b, H, n, m)
    if logits is not None:
        by_pair.add_(logits)
    top = weights.amax(-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0.0)
    torch.threshold_(weights.sub_(top).mul_(LOG2_E), LEAST, -math.inf).exp2_()
    total = weights.sum(-1, keepdim=True)
    known, by_vector = curves.by_distance(block, by_pair)
    taken = torch.bmm(weights, values).view(b, H, n, D) + by_vector @ curves.vectors[:, known]
    taken /= total.masked_fill(total == 0, 1.0).view(b, H, n, 1)
    return taken.to(q.dtype), (top + total.log()).view(b, H, n)


# In a graph that is being compiled: tokens known to stand in a row, as one operator.


def offset_in_a_row(biases: Sequence[Bias], at: Positions, keys_at: Positions, mask: Mask) -> int | None:
    """Query i stands so much further than i - j after key j, and nothing else counts; None where that is not known."""
    if mask.given is not None or mask.prefix:
        return None
    if not all(isinstance(bias, ByDistance) and bias.axes <= 1 for bias in biases):
        return None
    if at is keys_at and at.contiguous and (at.unit_step or not biases):
        return 0
    return None if at.start is None or keys_at.start is None else at.start - keys_at.start


GROUPED = TorchVersion(torch.__version__) >= "2.9"
"""Whether PyTorch's fused attention for a CPU is right where several query heads share a key head."""


GIVEN = "Tensor q, Tensor k, Tensor v, Tensor? values"
RULE = "SymInt offset, bool causal, SymInt? window, float scale, bool sums"
"""What `call_in_a_row` is told beside tensors."""


@torch.library.custom_op(
    "posenc::attend_in_a_row", mutates_args=(), schema=f"({GIVEN}, {RULE}) -> (Tensor, Tensor, Tensor)"
)
def attend_in_a_row(q: Tensor, k: Tensor, v: Tensor, values: Tensor | None, *rule: Any) -> tuple[Tensor, ...]:
    """Attention for tokens in a row and a bias [H, T + S - 1] of their distances.

    The output; the logarithms of sums with which to go back; and the same for others, or nothing.
    """
    call = call_in_a_row(q, k, values, *rule)
    out, sums = call.forwards([(q, k)], v)
    return out, finite(sums), call.in_full(sums) if call.sums else sums.new_empty(0)


def call_in_a_row(
    q: Tensor, k: Tensor, values: Tensor | None, offset: int, causal: bool, window: int | None, scale: float, sums: bool
) -> InBlocks:
    T, S = q.shape[2], k.shape[2]
    at, keys_at = Positions.count(T, max(offset, 0)), Positions.count(S, max(-offset, 0))
    plan = plan_for(at, keys_at, Mask(causal=causal, window=window), q.shape[0], q.shape[1], by_coords=True)
    in_row = DistancesInRow(values, range(T - 1 + offset, offset - S, -1), q, plan)
    return InBlocks(plan, SumInBlocks([], q, in_row), scale, sums=sums)


@attend_in_a_row.register_fake
def _(q, k, v, values, *rule):
    B, H, T, D = q.shape
    sums = q.new_empty(B, H, T, dtype=exact_dtype(q))
    return q.new_empty(B, T, H, D).transpose(1, 2), sums, sums.new_empty(sums.shape if rule[-1] else 0)


@torch.library.custom_op(
    "posenc::attend_in_a_row_backwards",
    mutates_args=(),
    schema=f"(Tensor grad, {GIVEN}, Tensor out, Tensor total, Tensor of_sums, {RULE})"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def attend_in_a_row_backwards(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, values: Tensor | None, out: Tensor, sums: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """The gradients of `attend_in_a_row` in q, k, v and values; the last is empty where there are no values."""
    of_sums, *rule = rest
    call = call_in_a_row(q, k, values, *rule)
    of_bias = None if values is None else BiasGradient(call.bias)
    (dq, dk), dv, _ = call.backwards([(q, k)], v, out, sums, grad, of_bias, of_sums if call.sums else None)
    of_values = None if of_bias is None else of_bias.total()[0]
    return dq, dk, dv, dq.new_empty(0) if of_values is None else of_values


@attend_in_a_row_backwards.register_fake
def _(grad, q, k, v, values, *rest):
    of_values = q.new_empty(0) if values is None else torch.empty_like(values)
    return torch.empty_like(q), torch.empty(k.shape, dtype=k.dtype), torch.empty(v.shape, dtype=v.dtype), of_values


def keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, values, *ctx.rule = inputs
    ctx.save_for_backward(q, k, v, values, *output[:2])


def go_back(ctx: Any, grad: Tensor, _: Tensor, grad_of_sums: Tensor) -> tuple:
    *slopes, of_values = attend_in_a_row_backwards(grad, *ctx.saved_tensors, grad_of_sums, *ctx.rule)
    return *slopes, None if ctx.saved_tensors[3] is None else of_values, *(None for _ in ctx.rule)


attend_in_a_row.register_autograd(go_back, setup_context=keep)
