"""Biases pair by pair: closures as FlexAttention has them, and what they are written with.

A closure takes a scaled logit and four indices, (score, b, h, i, j) -> score, and is elementwise in them. FlexAttention
asks it for one scalar at a time; everybody else for the grids of `index_grids` at once.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from posenc.tokens.shared_tables import numbers

ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def in_turn(mods: Sequence[ScoreMod]) -> ScoreMod | None:
    """The closure that applies each of these to the score; None where there are none."""
    if not mods:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for mod in mods:
            score = mod(score, b, h, i, j)
        return score

    return score_mod


def of_heads(values: Tensor, h: Tensor) -> Tensor:
    """Values by distance [H, ...] of the heads h, ready to be added to scores.

    FlexAttention asks for one scalar at a time; everybody else for the grid of h [H, 1, 1], whose values are [H, T, S],
    or [H, B, 1, T, S] where each row of the batch has its own.
    """
    if h.dim() == 0:
        return values[h]
    picked = values[h.flatten()]
    return picked if picked.dim() == 3 else picked.squeeze(2).movedim(0, 1)


def look_up(table: Tensor, *index: Tensor) -> Tensor:
    """table[index]. For whole grids by gathers, whose gradients are several times cheaper than those of indexing.

    Each index is a scalar, as FlexAttention has it; or each but the last is a grid of `index_grids`, and the last
    is another one, or differs from pair to pair.
    """
    *token, last = index
    if all(i.dim() == 0 for i in index):
        return table[index]
    rows = at_grids(table, *token)
    if last.dim() == 1:
        return rows.index_select(-1, last)
    if token[-1].dim() == 1:
        # Facts of keys are gathered key by key.
        return _gather(rows, last.transpose(-1, -2)).transpose(-1, -2)
    return _gather(rows if token[-1].dim() == 2 else rows[..., None, :], last)


def dot_products(queries: Tensor, keys: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """queries[b, h, i] . keys[b, h, j] for facts [B, H, T, C] and [B, H, S, C], whose batch or heads may be 1: shared.

    As `look_up`, for scalars and for whole grids.
    """

    def of(facts: Tensor, token: Tensor) -> Tensor:
        row, head = (i.new_zeros(()) if size == 1 else i for size, i in zip(facts.shape[:2], (b, h), strict=True))
        return facts[row, head, token] if token.dim() == 0 else at_grids(facts, row, head, token)

    if i.dim() == 0:
        return (of(queries, i) * of(keys, j)).sum(-1)
    return of(queries, i) @ of(keys, j).transpose(-1, -2)


def at_grids(table: Tensor, *grids: Tensor) -> Tensor:
    """The table with each of its first axes at the indices of a grid of `index_grids`."""
    for axis, grid in enumerate(grids):
        table = table.index_select(axis, grid.flatten())
    return table


def _gather(rows: Tensor, column: Tensor) -> Tensor:
    """One entry of the last axis for each column; the other axes broadcast."""
    # torch.broadcast_shapes would import the symbolic machinery of the compiler.
    shape = torch.broadcast_tensors(rows[..., :1], column[..., :1])[0].shape[:-1]
    return rows.expand(*shape, -1).gather(-1, column.expand(*shape, -1))


def index_grids(score: Tensor, *, backwards: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The indices b, h, i, j of a score tensor [B, H, T, S] as grids that broadcast to it; or last query first."""
    b, h, i, j = (torch.arange(n, device=score.device) for n in score.shape)
    i = i.flip(0) if backwards else i
    return b[:, None, None, None], h[:, None, None], i[:, None], j


def placed_on(heads: Sequence[int], of: int, modify: ScoreMod, device: torch.device) -> ScoreMod:
    """A closure of some heads as one of the model's heads: the others keep their score."""
    chosen = numbers(heads, torch.long, device)
    place = torch.full((of,), -1, device=device).index_copy(0, chosen, torch.arange(len(heads), device=device))

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(place[h] >= 0, modify(score, b, place[h].clamp(min=0), i, j), score)

    return score_mod


def looked_up(table: Tensor) -> ScoreMod:
    """The closure that adds table[b, h, i, j]; an axis of one entry stands for all."""

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + entry(table, b, h, i, j).to(score.dtype)

    return score_mod


def entry(table: Tensor, *index: Tensor) -> Tensor:
    """table[index], where an axis of one entry stands for all."""
    return table[tuple(first(i) if size == 1 else i for size, i in zip(table.shape, index, strict=True))]


def at_token(facts: Tensor, b: Tensor, token: Tensor) -> Tensor:
    """The facts [B or 1, T, ...] of tokens: rows that share them are not told apart, so that a grid has one for all."""
    return facts[first(b) if facts.shape[0] == 1 else b, token]


def first(index: Tensor) -> Tensor | int:
    """The first entry: among scalars one too, since older torch takes no gradient of a view; in a grid it is read."""
    return 0 if index.dim() else index.new_zeros(())
