"""Attention with all keys gathered on every rank, for encodings that read the keys in between."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.encoding.base import Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import attend_in_rows
from posenc.parallel.line import Line
from posenc.parallel.ring_exchange import pass_on
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


def gathered_attention(
    encoding: Encoding, q: Tensor, keys: Keys, mask: Mask, kernel: BoundKernel, line: Line
) -> Tensor:
    """Return attention [B, H, T, E] of this rank's queries to all ranks' keys. Queries are [B, H, T, D]."""
    names = list(keys.memo)
    k, v, *facts = GatherTokens.apply(line, keys.k, keys.v, *keys.memo.values())
    all_positions = all_rank_positions(line, keys.at)
    outs, start = [], 0
    for at in line.own_positions:
        rows = slice(start, start + at.tokens)
        query_memo = {name: fact[:, :, rows] for name, fact in keys.query_memo.items()}
        all_keys = Keys(k, v, all_positions, dict(zip(names, facts, strict=True)), query_memo)
        outs.append(attend_in_rows(encoding, q[:, :, rows], at, all_keys, mask, kernel)[0])
        start = rows.stop
    return torch.cat(outs, 2)


def all_rank_positions(line: Line, at: Positions) -> Positions:
    """Return the positions of the tokens of all ranks, in the order of the sequence."""
    starts = [chunk.start for chunk in line.chunks]
    size = line.chunks[0].tokens
    if starts[0] is not None and starts == [starts[0] + n * size for n in range(len(starts))]:
        return replace(Positions.count(size * len(starts), starts[0], device=at.device), horizon=at.horizon)
    facts = [fact for fact in (at.coords, at.order, at.document) if fact is not None]
    whole = [line.layout.gather(fact, 1, line.group) for fact in facts]
    steps = all(chunk.unit_step for chunk in line.chunks)
    extents = [chunk.extent for chunk in line.chunks]
    extent = None if None in extents else max(extent for extent in extents if extent is not None)
    return Positions(*whole, horizon=at.horizon, unit_step=steps, extent=extent)


class GatherTokens(torch.autograd.Function):
    """Gather facts of tokens [B, H, T, ...] from all ranks, in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, line: Line, *facts: Tensor) -> tuple[Tensor, ...]:
        ctx.line = line
        return tuple(line.layout.gather(fact, 2, line.group) for fact in facts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *reduce_to_owners(grads, ctx.line)


def reduce_to_owners(whole: Any, line: Line) -> list[Tensor]:
    """Sum facts [B, H, T, ...] of the whole sequence over ranks. Return the part of this rank's tokens."""
    rank, ranks = line.group.rank(), line.group.size()

    def part(step: int) -> list[Tensor]:
        return [line.layout.cut((rank - 1 - step) % ranks, x, 2) for x in whole]

    # The sum for a rank starts at the next rank, and travels over all others to it.
    sums = part(0)
    for step in range(1, ranks):
        incoming = pass_on(sums, line.group)()
        sums = [x + y for x, y in zip(incoming, part(step), strict=True)]
    return sums
