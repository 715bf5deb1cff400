"""Attention with keys that go round: each rank asks from its own queries the keys of one rank after another.

What a query takes of some keys, and the logarithm of its sum of exponentials over them, are all that it takes to go
on with others. Backwards the keys go round once more, and the gradients of each rank's keys with them, until they are
home. No rank ever holds the keys of more than three: its own, those that it asks, and those that are on their way.
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
from posenc.kernels.in_rows import at_a_time, standing_in
from posenc.kernels.log_sums import exact_dtype, finite, merged
from posenc.kernels.sinks import beside_sinks
from posenc.parallel.line import Chunk, Line
from posenc.parallel.passing import pass_on, rounds
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


def ring_attention(encoding: Encoding, q: Tensor, keys: Keys, mask: Mask, kernel: BoundKernel, line: Line) -> Tensor:
    """Attention of this rank's queries [B, H, T, D] to the keys of all ranks, [B, H, T, E].

    Sinks take their share once, behind the keys of all ranks.

    keys  this rank's own, of the same tokens as the queries; its sums along the sequence are those of the whole one
    """
    parameters = dict(encoding.named_parameters())
    read = {"": {"q": q, "k": keys.k, "v": keys.v}, "memo": keys.memo, "query_memo": keys.query_memo}
    read["parameters"] = parameters
    names = tuple((kind, name) for kind, tensors in read.items() for name in tensors)
    ring = Ring(encoding, keys, mask, replace(kernel, sinks=None), line, names)
    out, sums = Differentiable.apply(ring, *(tensor for tensors in read.values() for tensor in tensors.values()))
    return out if kernel.sinks is None else beside_sinks(out, sums, kernel.sinks)


class Tokens(NamedTuple):
    """Some tokens of a rank: which of its own, where they stand, and in which chunk."""

    rows: slice
    at: Positions
    chunk: Chunk


@dataclass(frozen=True)
class Ring:
    """One call of attention over a ring.

    keys    this rank's own
    names   what each input is: a tensor of the call ("" and its name), a fact of `memo` or `query_memo`, a parameter
    """

    encoding: Encoding
    keys: Keys
    mask: Mask
    kernel: BoundKernel
    line: Line
    names: tuple[tuple[str, str], ...]

    @property
    def of_keys(self) -> list[int]:
        """Which inputs are facts of keys, and go round."""
        return [n for n, (kind, name) in enumerate(self.names) if kind == "memo" or (kind == "" and name != "q")]

    def asking(self, q: Tensor) -> Iterator[Tokens]:
        """This rank's queries: chunk by chunk, and few at a time where a rule reads the logits of each pair."""
        start = 0
        for chunk, at in zip(self.line.layout.chunks_of(self.line.group.rank()), self.line.mine, strict=True):
            every_pair = self.encoding.queries_together or self.encoding.needs_weights
            step = at_a_time(self.encoding, q, at.tokens) if every_pair else at.tokens
            for rows in cut(slice(0, at.tokens), step):
                yield Tokens(slice(start + rows.start, start + rows.stop), at.rows(rows), self.line.chunks[chunk])
            start += at.tokens

    def rounds(self, inputs: tuple[Tensor, ...]) -> Iterator[tuple[list[Tokens], list[Tensor]]]:
        """Rank after rank: the keys that are here, chunk by chunk, and the facts of them all."""
        own = [inputs[n] for n in self.of_keys]
        for source, held in rounds([*own, *self.line.travelling(self.keys.at)], self.line.group):
            found = []
            for place, chunk in enumerate(self.line.layout.chunks_of(source)):
                told = self.line.chunks[chunk]
                rows = slice(place * told.tokens, (place + 1) * told.tokens)
                found.append(Tokens(rows, self.line.positions(chunk, place, held[len(own) :]), told))
            yield found, held[: len(own)]

    def pairs(self, queries: list[Tokens], keys: list[Tokens]) -> Iterator[tuple[Tokens, Tokens]]:
        """Queries and keys of which some may see each other."""
        return ((query, key) for query in queries for key in keys if query.chunk.may_see(key.chunk, self.mask))

    def read(self, inputs: tuple[Tensor, ...], held: list[Tensor], rows: slice, keys: slice) -> list[Tensor]:
        """What some queries and some keys of a rank read: of each input its part."""
        of_keys = dict(zip(self.of_keys, held, strict=True))
        found = []
        for n, (kind, _) in enumerate(self.names):
            x = of_keys.get(n, inputs[n])
            found.append(x if kind == "parameters" else x[:, :, keys if n in of_keys else rows])
        return found

    def attend(self, encoding: Encoding, asking: Tokens, at: Positions, read: list[Tensor]) -> tuple[Tensor, Tensor]:
        """What the queries take of these keys, and the logarithms of their sums of exponentials."""
        given: dict[str, dict[str, Tensor]] = {kind: {} for kind in ("", "memo", "query_memo", "parameters")}
        for (kind, name), tensor in zip(self.names, read, strict=True):
            given[kind][name] = tensor
        here = given[""]
        keys = Keys(here["k"], here["v"], at, given["memo"], given["query_memo"], self.keys.summed)
        sums: list[Tensor] = []
        kernel = replace(self.kernel, kernel=self.pair_by_pair, sums=sums)
        out, _ = encoding.attend(here["q"], asking.at, keys, self.mask, kernel)
        if len(sums) != 1:
            raise ValueError(
                f"a rule whose keys go round asks the kernel once, got {len(sums)} calls from {encoding}; use "
                f"exchange='gather'"
            )
        return out, sums[0]

    def pair_by_pair(self, biases: Sequence[Bias], *given: Any, **asked: Any) -> tuple[Tensor, Tensor | None]:
        """The kernel, for biases that read no other keys. Raises ValueError for one that does."""
        if any(isinstance(bias, Pairs) and bias.reads_between for bias in biases):
            raise ValueError(
                f"{self.encoding} says by between={self.encoding.between} that it reads no keys between two tokens, "
                f"and has a bias that does; say between = None, or reads_between=False where the bias is made"
            )
        return self.kernel.kernel(biases, *given, **asked)

    def forwards(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The output [B, H, T, E] in float32 at least, and the logarithm of each query's sum [B, H, T]."""
        q, v = inputs[0], inputs[2]
        out = q.new_zeros((*q.shape[:3], v.shape[-1]), dtype=exact_dtype(q))
        sums = q.new_full(q.shape[:3], -torch.inf, dtype=out.dtype)
        asking = list(self.asking(q))
        for asked, held in self.rounds(inputs):
            for one, (keys, at, _) in self.pairs(asking, asked):
                here = self.attend(self.encoding, one, at, self.read(inputs, held, one.rows, keys))
                so_far = out[:, :, one.rows], sums[:, :, one.rows]
                out[:, :, one.rows], sums[:, :, one.rows] = merged([so_far, here])
        return out, sums

    def backwards(self, inputs: tuple[Tensor, ...], of_rows: list[Tensor], wanted: list[bool]) -> list[Tensor | None]:
        """The gradients in the inputs; those of keys come home from all ranks.

        of_rows  the output, the logarithms of the sums, and the gradients in both

        With s the share exp(sum of these keys - sum of all), a block's output has the gradient s grad, and its sum's
        logarithm s (grad . (its output - the whole output) + the gradient of the whole sum's).
        """
        totals = [
            torch.zeros_like(x, dtype=exact_dtype(x)) if want else None for x, want in zip(inputs, wanted, strict=True)
        ]
        going = [n for n in self.of_keys if wanted[n]]
        encoding, leaves = standing_in(self.encoding, self.names, inputs)
        asking, coming = list(self.asking(inputs[0])), None
        for asked, held in self.rounds(inputs):
            of_keys = {n: inputs[n].new_zeros(inputs[n].shape, dtype=exact_dtype(inputs[n])) for n in going}
            for one, (keys, at, _) in self.pairs(asking, asked):
                read = self.read(leaves, held, one.rows, keys)
                read = [
                    x if kind == "parameters" else x.detach().requires_grad_(want)
                    for x, (kind, _), want in zip(read, self.names, wanted, strict=True)
                ]
                with torch.enable_grad():
                    found = self.attend(encoding, one, at, read)
                here = (x[:, :, one.rows] for x in of_rows)
                for n, slope in self.slopes(found, read, *here).items():
                    total = of_keys.get(n, totals[n])
                    assert total is not None
                    is_whole = self.names[n][0] == "parameters"
                    (total if is_whole else total[:, :, keys if n in of_keys else one.rows]).add_(slope)
            if not going:
                continue
            if coming is not None:
                # What the ranks before have found of these keys has come while this one looked for its own.
                for mine, theirs in zip(of_keys.values(), coming(), strict=True):
                    mine += theirs
            if self.line.group.size() == 1:
                totals = [of_keys.get(n, total) for n, total in enumerate(totals)]
            else:
                coming = pass_on(list(of_keys.values()), self.line.group, tag=1)
        if coming is not None:
            for n, total in zip(going, coming(), strict=True):
                totals[n] = total
        return [None if total is None else total.to(x.dtype) for x, total in zip(inputs, totals, strict=True)]

    @staticmethod
    def slopes(
        found: tuple[Tensor, Tensor], read: list[Tensor], out: Tensor, sums: Tensor, grad: Tensor, grad_of_sums: Tensor
    ) -> dict[int, Tensor]:
        """The gradients in what some queries and keys read, by its number."""
        taken, total = found
        share = (total.detach() - finite(sums)).exp()
        of_sums = share * ((grad * (taken.detach() - out)).sum(-1) + grad_of_sums)
        back = [(taken, (share[..., None] * grad).to(taken.dtype)), (total, of_sums)]
        back = [(x, slope) for x, slope in back if x.requires_grad]
        wanted = [n for n, x in enumerate(read) if x.requires_grad]
        if not back or not wanted:
            return {}
        slopes = torch.autograd.grad(
            [x for x, _ in back], [read[n] for n in wanted], [slope for _, slope in back], allow_unused=True
        )
        return {n: slope for n, slope in zip(wanted, slopes, strict=True) if slope is not None}


class Differentiable(torch.autograd.Function):
    """A call over a ring as one step of the graph, which keeps this rank's tokens alone."""

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
        enabled, dtype = ctx.autocast
        with torch.autocast(out.device.type, dtype, enabled=enabled):
            of_rows = [out, sums, grads[0].to(out.dtype), grads[1]]
            slopes = ctx.ring.backwards(tuple(inputs), of_rows, list(ctx.needs_input_grad[1:]))
        return None, *slopes
