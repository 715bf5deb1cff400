"""Ring attention: each rank's queries attend to the keys of one rank after another.

Outputs over parts of the keys are merged by their log-sum-exp. In the backward pass the keys go round once more, and
their gradients with them until they are home. A rank holds the keys of three ranks at most: its own, the current ones,
and those in transfer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, Pairs
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.block_sizes import cut
from posenc.kernels.in_rows import rows_at_once, with_leaf_parameters
from posenc.kernels.log_sums import exact_dtype, finite, merge_parts
from posenc.kernels.sinks import with_sinks
from posenc.parallel.line import ChunkFacts, Line
from posenc.parallel.ring_exchange import pass_on, rounds
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


def ring_attention(encoding: Encoding, q: Tensor, keys: Keys, mask: Mask, kernel: BoundKernel, line: Line) -> Tensor:
    """Return attention [B, H, T, E] of this rank's queries to the keys of all ranks.

    Queries are [B, H, T, D]. Sinks take their share once, after the keys of all ranks.

    keys  this rank's own, of the same tokens as the queries; prefix sums are over the whole sequence
    """
    parameters = dict(encoding.named_parameters())
    groups = {"": {"q": q, "k": keys.k, "v": keys.v}, "memo": keys.memo, "query_memo": keys.query_memo}
    groups["parameters"] = parameters
    names = tuple((kind, name) for kind, tensors in groups.items() for name in tensors)
    ring = Ring(encoding, keys, mask, replace(kernel, sinks=None), line, names)
    out, sums = RingAttention.apply(ring, *(tensor for tensors in groups.values() for tensor in tensors.values()))
    return out if kernel.sinks is None else with_sinks(out, sums, kernel.sinks)


class TokenRange(NamedTuple):
    """Some tokens of a rank: their rows, positions and chunk."""

    rows: slice
    at: Positions
    chunk: ChunkFacts


@dataclass(frozen=True)
class Ring:
    """One call of attention over a ring.

    keys    this rank's own
    names   kind and name of each input: a tensor of the call (kind ""), a fact of `memo` or `query_memo`, a parameter
    """

    encoding: Encoding
    keys: Keys
    mask: Mask
    kernel: BoundKernel
    line: Line
    names: tuple[tuple[str, str], ...]

    @property
    def of_keys(self) -> list[int]:
        """Return the numbers of the inputs that are facts of keys, and go round."""
        return [n for n, (kind, name) in enumerate(self.names) if kind == "memo" or (kind == "" and name != "q")]

    def query_ranges(self, q: Tensor) -> Iterator[TokenRange]:
        """Yield this rank's queries by chunk, in smaller ranges if a rule materialises all pairs."""
        start = 0
        for chunk, at in zip(self.line.layout.chunks_of(self.line.group.rank()), self.line.own_positions, strict=True):
            every_pair = self.encoding.queries_together or self.encoding.needs_weights
            step = rows_at_once(self.encoding, q, at.tokens) if every_pair else at.tokens
            for rows in cut(slice(0, at.tokens), step):
                yield TokenRange(slice(start + rows.start, start + rows.stop), at.rows(rows), self.line.chunks[chunk])
            start += at.tokens

    def rounds(self, inputs: tuple[Tensor, ...]) -> Iterator[tuple[list[TokenRange], list[Tensor]]]:
        """Yield for each rank the ranges of its keys, by chunk, and their facts."""
        own_facts = [inputs[n] for n in self.of_keys]
        for source, facts in rounds([*own_facts, *self.line.travelling(self.keys.at)], self.line.group):
            chunks = []
            for place, chunk in enumerate(self.line.layout.chunks_of(source)):
                chunk_facts = self.line.chunks[chunk]
                rows = slice(place * chunk_facts.tokens, (place + 1) * chunk_facts.tokens)
                chunks.append(TokenRange(rows, self.line.positions(chunk, place, facts[len(own_facts) :]), chunk_facts))
            yield chunks, facts[: len(own_facts)]

    def pairs(self, queries: list[TokenRange], keys: list[TokenRange]) -> Iterator[tuple[TokenRange, TokenRange]]:
        """Yield the ranges of queries and keys in which a query may see a key."""
        return ((query, key) for query in queries for key in keys if query.chunk.may_see(key.chunk, self.mask))

    def read(self, inputs: tuple[Tensor, ...], facts: list[Tensor], rows: slice, keys: slice) -> list[Tensor]:
        """Return the part of each input that some queries and keys read."""
        of_keys = dict(zip(self.of_keys, facts, strict=True))
        parts = []
        for n, (kind, _) in enumerate(self.names):
            x = of_keys.get(n, inputs[n])
            parts.append(x if kind == "parameters" else x[:, :, keys if n in of_keys else rows])
        return parts

    def attend(
        self, encoding: Encoding, queries: TokenRange, at: Positions, read: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the out of the queries over these keys, and their log-sum-exp."""
        tensors: dict[str, dict[str, Tensor]] = {kind: {} for kind in ("", "memo", "query_memo", "parameters")}
        for (kind, name), tensor in zip(self.names, read, strict=True):
            tensors[kind][name] = tensor
        call = tensors[""]
        keys = Keys(call["k"], call["v"], at, tensors["memo"], tensors["query_memo"], self.keys.prefix_sums)
        sums: list[Tensor] = []
        kernel = replace(self.kernel, kernel=self.pair_by_pair, sums=sums)
        out, _ = encoding.attend(call["q"], queries.at, keys, self.mask, kernel)
        if len(sums) != 1:
            raise ValueError(
                f"a rule whose keys go round asks the kernel once, got {len(sums)} calls from {encoding}; use "
                f"exchange='gather'"
            )
        return out, sums[0]

    def pair_by_pair(self, biases: Sequence[Bias], *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Call the kernel. Raises ValueError for a bias that reads other keys."""
        if any(isinstance(bias, Pairs) and bias.reads_between for bias in biases):
            raise ValueError(
                f"{self.encoding} says by between={self.encoding.between} that it reads no keys between two tokens, "
                f"and has a bias that does; say between = None, or reads_between=False where the bias is made"
            )
        return self.kernel.kernel(biases, *arguments, **options)

    def forwards(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the out [B, H, T, E] in float32 at least, and the log-sum-exp [B, H, T]."""
        q, v = inputs[0], inputs[2]
        out = q.new_zeros((*q.shape[:3], v.shape[-1]), dtype=exact_dtype(q))
        sums = q.new_full(q.shape[:3], -torch.inf, dtype=out.dtype)
        all_queries = list(self.query_ranges(q))
        for rank_keys, facts in self.rounds(inputs):
            for queries, (keys, at, _) in self.pairs(all_queries, rank_keys):
                part = self.attend(self.encoding, queries, at, self.read(inputs, facts, queries.rows, keys))
                so_far = out[:, :, queries.rows], sums[:, :, queries.rows]
                out[:, :, queries.rows], sums[:, :, queries.rows] = merge_parts([so_far, part])
        return out, sums

    def backwards(
        self, inputs: tuple[Tensor, ...], of_rows: list[Tensor], needs_grad: list[bool]
    ) -> list[Tensor | None]:
        """Return the gradients in the inputs; those of keys are summed over all ranks.

        of_rows  the out, the log-sum-exp, and the gradients in both

        With s = exp(lse of these keys - lse of all), a block's out has the gradient s grad, and its log-sum-exp
        s (grad . (its out - the whole out) + the gradient of the whole log-sum-exp).
        """
        totals = [
            torch.zeros_like(x, dtype=exact_dtype(x)) if is_needed else None
            for x, is_needed in zip(inputs, needs_grad, strict=True)
        ]
        keys_with_grad = [n for n in self.of_keys if needs_grad[n]]
        encoding, leaves = with_leaf_parameters(self.encoding, self.names, inputs)
        all_queries, arrive = list(self.query_ranges(inputs[0])), None
        for rank_keys, facts in self.rounds(inputs):
            of_keys = {n: inputs[n].new_zeros(inputs[n].shape, dtype=exact_dtype(inputs[n])) for n in keys_with_grad}
            for queries, (keys, at, _) in self.pairs(all_queries, rank_keys):
                read = self.read(leaves, facts, queries.rows, keys)
                read = [
                    x if kind == "parameters" else x.detach().requires_grad_(is_needed)
                    for x, (kind, _), is_needed in zip(read, self.names, needs_grad, strict=True)
                ]
                with torch.enable_grad():
                    part = self.attend(encoding, queries, at, read)
                here = (x[:, :, queries.rows] for x in of_rows)
                for n, slope in self.slopes(part, read, *here).items():
                    total = of_keys.get(n, totals[n])
                    assert total is not None
                    is_whole = self.names[n][0] == "parameters"
                    (total if is_whole else total[:, :, keys if n in of_keys else queries.rows]).add_(slope)
            if not keys_with_grad:
                continue
            if arrive is not None:
                # The previous ranks' gradients of these keys arrived while this rank computed its own.
                for own_slope, incoming in zip(of_keys.values(), arrive(), strict=True):
                    own_slope += incoming
            if self.line.group.size() == 1:
                totals = [of_keys.get(n, total) for n, total in enumerate(totals)]
            else:
                arrive = pass_on(list(of_keys.values()), self.line.group, tag=1)
        if arrive is not None:
            for n, total in zip(keys_with_grad, arrive(), strict=True):
                totals[n] = total
        return [None if total is None else total.to(x.dtype) for x, total in zip(inputs, totals, strict=True)]

    @staticmethod
    def slopes(
        part: tuple[Tensor, Tensor], read: list[Tensor], out: Tensor, sums: Tensor, grad: Tensor, grad_of_sums: Tensor
    ) -> dict[int, Tensor]:
        """Return the gradients in the inputs that some queries and keys read, by number."""
        part_output, total = part
        share = (total.detach() - finite(sums)).exp()
        of_sums = share * ((grad * (part_output.detach() - out)).sum(-1) + grad_of_sums)
        upstream = [(part_output, (share[..., None] * grad).to(part_output.dtype)), (total, of_sums)]
        upstream = [(x, slope) for x, slope in upstream if x.requires_grad]
        input_numbers = [n for n, x in enumerate(read) if x.requires_grad]
        if not upstream or not input_numbers:
            return {}
        slopes = torch.autograd.grad(
            [x for x, _ in upstream],
            [read[n] for n in input_numbers],
            [slope for _, slope in upstream],
            allow_unused=True,
        )
        return {n: slope for n, slope in zip(input_numbers, slopes, strict=True) if slope is not None}


class RingAttention(torch.autograd.Function):
    """A ring call as one autograd function, which saves this rank's tokens alone."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        out, sums = ring.forwards(inputs)
        device = out.device.type
        ctx.ring = ring
        ctx.autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        ctx.save_for_backward(out, sums, *inputs)
        return out.to(inputs[2].dtype), sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("attention over a ring of ranks has no gradient of its gradient; use exchange='gather'")
        out, sums, *inputs = ctx.saved_tensors
        had_autocast, dtype = ctx.autocast
        with torch.autocast(out.device.type, dtype, enabled=had_autocast):
            of_rows = [out, sums, grads[0].to(out.dtype), grads[1]]
            slopes = ctx.ring.backwards(tuple(inputs), of_rows, list(ctx.needs_input_grad[1:]))
        return None, *slopes
