"""Closures of biases, as in FlexAttention, and their building blocks.

A closure takes a scaled logit and four indices, (score, b, h, i, j) -> score, and is elementwise in them. FlexAttention
calls it with scalars; other kernels with the grids of `index_grids`.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from posenc.tokens.shared_tables import number_tensor

ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def chain_mods(mods: Sequence[ScoreMod]) -> ScoreMod | None:
    """Return the closure that applies each of these to the score; None without any."""
    if not mods:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for mod in mods:
            score = mod(score, b, h, i, j)
        return score

    return score_mod


def head_values(values: Tensor, h: Tensor) -> Tensor:
    """Return values by distance [H, ...] of the heads h, in the shape of scores.

    In FlexAttention h is a scalar; elsewhere the grid [H, 1, 1], whose values are [H, T, S], or [H, B, 1, T, S] if
    each row of the batch has its own.
    """
    if h.dim() == 0:
        return values[h]
    rows = values[h.flatten()]
    return rows if rows.dim() == 3 else rows.squeeze(2).movedim(0, 1)


def look_up(table: Tensor, *index: Tensor) -> Tensor:
    """Return table[index]; for grids by gathers, whose gradients are several times cheaper than those of indexing.

    Each index is a scalar, or each is a grid of `index_grids`; the last may also differ from pair to pair.
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
    """Return queries[b, h, i] . keys[b, h, j] for facts [B or 1, H or 1, T, C] and [B or 1, H or 1, S, C].

    The indices are scalars or grids, as in `look_up`.
    """

    def rows_of(facts: Tensor, token: Tensor) -> Tensor:
        row, head = (i.new_zeros(()) if size == 1 else i for size, i in zip(facts.shape[:2], (b, h), strict=True))
        return facts[row, head, token] if token.dim() == 0 else at_grids(facts, row, head, token)

    if i.dim() == 0:
        return (rows_of(queries, i) * rows_of(keys, j)).sum(-1)
    return rows_of(queries, i) @ rows_of(keys, j).transpose(-1, -2)


def at_grids(table: Tensor, *grids: Tensor) -> Tensor:
    """Return the table with its first axes indexed by grids of `index_grids`."""
    for axis, grid in enumerate(grids):
        table = table.index_select(axis, grid.flatten())
    return table


def _gather(rows: Tensor, column: Tensor) -> Tensor:
    """Gather along the last axis; the other axes broadcast."""
    # torch.broadcast_shapes would import the symbolic machinery of the compiler.
    shape = torch.broadcast_tensors(rows[..., :1], column[..., :1])[0].shape[:-1]
    return rows.expand(*shape, -1).gather(-1, column.expand(*shape, -1))


def index_grids(score: Tensor, *, backwards: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return indices b, h, i, j of scores [B, H, T, S] as broadcastable grids. `backwards` has the last query first."""
    b, h, i, j = (torch.arange(n, device=score.device) for n in score.shape)
    i = i.flip(0) if backwards else i
    return b[:, None, None, None], h[:, None, None], i[:, None], j


def heads_mod(heads: Sequence[int], total_heads: int, modify: ScoreMod, device: torch.device) -> ScoreMod:
    """Return a closure of some heads as a closure of all heads; the others keep their score."""
    numbers = number_tensor(heads, torch.long, device)
    own_number = torch.arange(len(heads), device=device)
    place = torch.full((total_heads,), -1, device=device).index_copy(0, numbers, own_number)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(place[h] >= 0, modify(score, b, place[h].clamp(min=0), i, j), score)

    return score_mod


def table_mod(table: Tensor) -> ScoreMod:
    """Return the closure that adds table[b, h, i, j]; axes of one entry broadcast."""

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table_entry(table, b, h, i, j).to(score.dtype)

    return score_mod


def table_entry(table: Tensor, *index: Tensor) -> Tensor:
    """Return table[index]; axes of one entry broadcast."""
    return table[tuple(first_index(i) if size == 1 else i for size, i in zip(table.shape, index, strict=True))]


def at_token(facts: Tensor, b: Tensor, token: Tensor) -> Tensor:
    """Return the facts [B or 1, T, ...] of a token. Facts that all rows share ignore b, so a grid has one row."""
    return facts[first_index(b) if facts.shape[0] == 1 else b, token]


def first_index(index: Tensor) -> Tensor | int:
    """Return index 0: a tensor for scalars, else a number. Older torch has no gradient of a view."""
    return 0 if index.dim() else index.new_zeros(())
