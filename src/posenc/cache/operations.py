"""Operations on the positions of cached tokens: crop, drop, move and splice.

Every function returns the positions of all columns of the cache; dropped tokens have order -1. Keys are not touched.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from posenc import checks
from posenc.tokens.positions import CountedPositions, Positions

TokenSet: TypeAlias = slice | range | Sequence[int] | Tensor | int | None
"""Tokens of a row by their order: a slice, numbers, a boolean for each from 0 on, or None for all."""

INTEGERS = (torch.int64, torch.int32)


def crop_positions(at: Positions, tokens: int | Tensor, batch: int) -> Positions:
    """Return the positions without tokens whose order is `tokens` (a number, or [B]) or later.

    Raises ValueError for a negative number, and for another number of rows.
    """
    is_number = checks.is_whole(tokens) or (isinstance(tokens, Tensor) and tokens.dtype in INTEGERS)
    limit = torch.as_tensor(tokens, device=at.order.device) if is_number else None
    if limit is None or limit.dim() > 1 or limit.numel() not in (1, batch) or int(limit.min()) < 0:
        raise ValueError(
            f"crop to 0 or more tokens, one number or one for each of {batch} rows, got {checks.display(tokens)}"
        )
    return positions_without(at, at.order >= limit.reshape(-1, 1))


def drop_positions(at: Positions, drop_mask: Tensor, batch: int, *, renumber: bool, rows: TokenSet) -> Positions:
    """Return the positions without the tokens of `drop_mask` [B or 1, S], in all rows or some.

    With `renumber`, gaps close: order counts up from the first cached token, and the token behind a run of dropped
    tokens takes the place of the first of them. Each document closes its own gaps.
    Raises ValueError for gaps in more than one axis.
    """
    old, row_mask = at, row_mask_of(rows, batch, at.device)
    at = positions_without(at, drop_mask if row_mask is None else drop_mask & row_mask[:, None])
    if not renumber or bool((at.order.amax(1) < 0).all()):
        return at
    is_held, is_kept = (old.order >= 0).expand_as(at.order), at.order >= 0
    last = torch.iinfo(old.order.dtype).max
    old_order = old.order.expand_as(at.order).masked_fill(~is_held, last)
    by_order = old_order.argsort(dim=1, stable=True)
    old_order, is_held, is_kept = (fact.gather(1, by_order) for fact in (old_order, is_held, is_kept))
    order = old_order[:, :1] + is_kept.cumsum(1) - 1
    place = order if old.unit_step else coords_without_gaps(old, by_order, is_held, is_kept)
    inverse = by_order.argsort(1)
    order, place = order.masked_fill(~is_kept, -1).gather(1, inverse), place.gather(1, inverse)
    if row_mask is not None:
        order = torch.where(row_mask[:, None], order, at.order)
        place = torch.where(row_mask[:, None], place, old.coords[..., 0])
    coords = place.to(old.coords.dtype)[..., None]
    return at.with_facts(coords=coords, order=order, contiguous=False, extent=None, loose=False)


def positions_without(at: Positions, drop_mask: Tensor) -> Positions:
    """Return the positions without the tokens of `drop_mask` [B or 1, S]."""
    drop_mask = drop_mask & (at.order >= 0)
    if not bool(drop_mask.any()):
        return at
    order = at.order.expand_as(drop_mask).masked_fill(drop_mask, -1)
    return at.with_facts(order=order, contiguous=False, loose=False)


def coords_without_gaps(old: Positions, by_order: Tensor, is_held: Tensor, is_kept: Tensor) -> Tensor:
    """Return the coordinates [B, S], sorted by order, without the step behind each dropped token."""
    if old.axes != 1:
        raise ValueError(
            f"gaps close along one axis, and these tokens have {old.axes}; give renumber=False, or set their "
            f"positions with move(tokens, to=positions)"
        )
    place = old.coords[..., 0].expand_as(by_order).gather(1, by_order)
    step = torch.zeros_like(place)
    step[:, :-1] = torch.where(is_held[:, 1:], place[:, 1:] - place[:, :-1], 0)
    index = torch.arange(place.shape[1], device=place.device).expand_as(by_order)
    begins = torch.zeros_like(index)
    if old.document is not None:
        document = old.document.expand_as(by_order).gather(1, by_order)
        new = document[:, 1:] != document[:, :-1]
        step[:, :-1] = step[:, :-1].masked_fill(new, 0)
        begins[:, 1:] = torch.where(new, index[:, 1:], 0)
        begins = begins.cummax(1).values
    dropped_steps = step.masked_fill(is_kept, 0)
    total = dropped_steps.cumsum(1) - dropped_steps
    return place - (total - total.gather(1, begins))


def move_positions(
    at: Positions, mask: Tensor, *, steps: int | None = None, target: int | Positions | None = None
) -> Positions:
    """Return the positions with the tokens of `mask` [B or 1, S] moved by `steps` or to `target`.

    A whole number moves order and coordinate alike; as a target it is the new order of the first token. Positions name
    the new place of each token, sorted by order; loose ones (Positions.of(ids)) change coordinates and keep order.

    Raises ValueError unless one of the two is given, for positions of another number of tokens, for a whole number
    and several axes, and for a token moved before 0 or onto another one.
    """
    if (steps is None) == (target is None):
        raise ValueError("give by=a number of places, or to=a place or Positions")
    if isinstance(target, Positions):
        return check_unique(at, positions_moved_to(at, mask, target))
    if at.axes != 1:
        raise ValueError(
            f"a number moves tokens along one axis, and these have {at.axes}; give their places with to=positions"
        )
    if target is not None:
        first = at.order.expand_as(mask).masked_fill(~mask, torch.iinfo(at.order.dtype).max).amin(1, keepdim=True)
        shift = checks.whole("the place that tokens move to", target, 0) - first
    else:
        shift = torch.full((1, 1), checks.whole("by", steps), device=at.order.device)
    shift = torch.where(mask, shift, 0)
    coords = at.coords + shift[..., None].to(at.coords.dtype)
    order = at.order + shift
    lowest = int(torch.where(mask, order, 0).min())
    if lowest < 0:
        raise ValueError(f"a token would come to order {lowest}, before the first place, 0; move it by less")
    return check_unique(at, at.with_facts(coords=coords, order=order, contiguous=False, extent=None, loose=False))


def positions_moved_to(at: Positions, moving: Tensor, target: Positions) -> Positions:
    """Return the positions with the tokens of `mask` at the target positions, sorted by order."""
    moves = moving.sum(1)
    if bool((moves[moves > 0] != target.tokens).any()):
        raise ValueError(
            f"got {target.tokens} positions for the {int(moves.max())} tokens that move; give one for each"
        )
    if target.axes != at.axes:
        raise ValueError(f"the tokens have {at.axes} axes, got positions with {target.axes}; give as many")
    # Rows that shared their positions may now differ.
    rows = max(moving.shape[0], target.order.shape[0], target.coords.shape[0])
    last, moving = torch.iinfo(at.order.dtype).max, moving.expand(rows, -1)
    by_order = at.order.expand_as(moving).masked_fill(~moving, last).argsort(dim=1, stable=True)
    number = by_order.argsort(1).clamp(max=target.tokens - 1)

    def of_moving(new: Tensor, old: Tensor) -> Tensor:
        axes = (..., *(None,) * (new.dim() - 2))
        return torch.where(moving[axes], new.take_along_dim(number[axes], 1), old)

    document = at.document
    if target.document is not None:
        document = of_moving(target.document, torch.zeros_like(at.order) if document is None else document)
    order = at.order.expand_as(moving) if target.loose else of_moving(target.order, at.order)
    return at.with_facts(
        coords=of_moving(target.coords, at.coords),
        order=order,
        document=document,
        unit_step=at.unit_step and target.unit_step and not target.loose,
        contiguous=False,
        extent=None,
        loose=False,
    )


def check_unique(old: Positions, at: Positions) -> Positions:
    """Return `at`. Raises ValueError if two tokens of a row now share an order."""
    if upon_each_other(at.order).numel() > upon_each_other(old.order).numel():
        order = int(upon_each_other(at.order)[0])
        raise ValueError(
            f"two tokens of a row would have order {order}; make room first, or forget what is there with drop(...)"
        )
    return at


def upon_each_other(order: Tensor) -> Tensor:
    """Return the orders that several tokens of a row share."""
    sorted_order = order.sort(1).values
    return sorted_order[:, 1:][(sorted_order[:, 1:] == sorted_order[:, :-1]) & (sorted_order[:, 1:] >= 0)]


def splice_at(at: Positions | None, added_at: Positions, place: int) -> tuple[Positions | None, Positions]:
    """Return the positions of cached and inserted tokens, inserted in front of the token of order `place`.

    Raises ValueError for several documents, positions that do not count up by one, and a place behind the last token.
    """
    for length in (added_at,) if at is None else (at, added_at):
        if length.document is not None or not length.unit_step:
            raise ValueError(
                "only tokens of one document that count up by one can be spliced; move other tokens with "
                "move(tokens, to=positions)"
            )
    length = 0 if at is None else int(at.order.amax(1).min()) + 1
    if checks.whole("the place to splice at", place, 0) > length:
        raise ValueError(f"the cache holds {length} tokens, and nothing can be put at {place}")
    last = torch.iinfo(added_at.order.dtype).max
    first = added_at.order.masked_fill(added_at.order < 0, last).amin(1, keepdim=True)
    moved_in = with_order(added_at, torch.where(added_at.order < 0, added_at.order, added_at.order - first + place))
    if at is None:
        return None, moved_in
    room = (added_at.order.amax(1, keepdim=True) - first + 1).clamp(min=0)
    return with_order(at, torch.where(at.order >= place, at.order + room, at.order)), moved_in


def with_order(at: Positions, order: Tensor) -> Positions:
    """Return the positions with this order, and coordinates equal to it."""
    coords = order.clamp(min=0)[..., None].to(at.coords.dtype)
    return at.with_facts(coords=coords, order=order, contiguous=False, extent=None, loose=False)


def with_inferred_fields(at: Positions) -> Positions:
    """Return the same positions with static fields inferred from the tensors: shared rows, contiguous, unit_step."""
    facts = at.tensors()
    shared_facts = {name: fact[:1] for name, fact in facts.items() if bool((fact == fact[:1]).all())}
    if len(shared_facts) == len(facts):
        at = at.with_facts(**shared_facts)
    order, place = at.order, at.coords[..., 0]
    contiguous = bool((order[:, 1:] == order[:, :-1] + 1).all()) and bool((order >= 0).all())
    contiguous = contiguous and bool((order == order[:1]).all()) and at.document is None
    unit_step = at.axes == 1 and bool(((place == order) | (order < 0)).all())
    # Coordinates that the caller set may have gaps of their own, which stay.
    first = order.masked_fill(order < 0, torch.iinfo(order.dtype).max).amin(1)
    unit_step = unit_step and (at.unit_step or bool((order.amax(1) - first < (order >= 0).sum(1)).all()))
    if contiguous and unit_step and at.horizon is None and not at.coords.is_floating_point():
        return CountedPositions(at.tokens, int(order[0, 0]), at.device)
    return at.with_facts(contiguous=contiguous, unit_step=unit_step, extent=extent_of(at), loose=False)


def extent_of(at: Positions) -> int | None:
    """Return one more than the largest coordinate; None if one is fractional or negative."""
    whole = not at.coords.is_floating_point() and bool((at.coords >= 0).all())
    return int(at.coords.max()) + 1 if whole else None


def token_mask(at: Positions, tokens: TokenSet, batch: int, rows: TokenSet = None) -> Tensor:
    """Return a mask [B or 1, S] of the selected tokens, in all rows or some.

    Raises ValueError for another kind of selection, and for tokens that no row holds.
    """
    is_held, total, row_mask = at.order >= 0, int(at.order.max()) + 1, row_mask_of(rows, batch, at.device)
    if row_mask is not None:
        is_held = is_held & row_mask[:, None]
    if tokens is None:
        return is_held
    if isinstance(tokens, slice):
        tokens = range(*tokens.indices(total))
    if checks.is_whole(tokens):
        tokens = [tokens]
    if isinstance(tokens, (range, list, tuple)) and all(checks.is_whole(token) for token in tokens):
        tokens = torch.tensor(list(tokens), dtype=torch.long)
    wrong = not isinstance(tokens, Tensor) or tokens.dtype not in (*INTEGERS, torch.bool) or tokens.dim() not in (1, 2)
    if wrong or (tokens.dim() == 2 and tokens.shape[0] not in (1, batch)):
        raise ValueError(
            f"select tokens by a slice, by numbers from 0 to {total - 1}, or by a boolean for each, [tokens] or "
            f"[{batch}, tokens]; got {checks.display(tokens)}"
        )
    tokens = tokens.to(at.order.device)
    tokens = tokens[None] if tokens.dim() == 1 else tokens
    if tokens.dtype != torch.bool:
        if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= total):
            raise ValueError(f"the cache holds tokens of order 0 to {total - 1}, got {checks.display(tokens)}")
        selection = torch.zeros(tokens.shape[0], total, dtype=torch.bool, device=tokens.device)
        tokens = selection.scatter(1, tokens.long(), True)
    elif tokens.shape[1] != total:
        raise ValueError(f"the cache holds {total} tokens, got a boolean for {tokens.shape[1]}; give one for each")
    rows_of_mask = max(tokens.shape[0], at.order.shape[0])
    return tokens.expand(rows_of_mask, -1).gather(1, at.order.clamp(min=0).expand(rows_of_mask, -1)) & is_held


def row_mask_of(rows: TokenSet, batch: int, device: torch.device | None) -> Tensor | None:
    """Return a mask [B] of the selected rows; None for all. Raises ValueError for rows that do not exist."""
    if rows is None:
        return None
    selection = torch.zeros(batch, dtype=torch.bool, device=device)
    selection[row_numbers([rows] if checks.is_whole(rows) else rows, batch).to(selection.device)] = True
    return selection


def row_numbers(rows: object, batch: int) -> Tensor:
    """Return the numbers of rows as a tensor [n]. Raises ValueError for other values and unknown rows."""
    numbers = rows
    if isinstance(rows, (list, tuple, range)) and rows and all(checks.is_whole(row) for row in rows):
        numbers = torch.tensor(list(rows))
    wrong = not isinstance(numbers, Tensor) or numbers.dim() != 1 or numbers.dtype not in INTEGERS or not len(numbers)
    if wrong or int(numbers.min()) < 0 or int(numbers.max()) >= batch:
        raise ValueError(
            f"choose rows of the batch by numbers from 0 to {batch - 1}, of shape [rows], got {checks.display(rows)}"
        )
    return numbers
