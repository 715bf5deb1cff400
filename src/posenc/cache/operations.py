"""What can be done to tokens that a cache holds, as Positions to Positions: which stay, and where they then stand.

Every function gives the positions of all tokens that are held, in the order in which they lie there; those that are
forgotten have order -1. Nothing here knows how keys are stored.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from posenc import checks
from posenc.tokens.positions import Counted, Positions

Tokens: TypeAlias = slice | range | Sequence[int] | Tensor | int | None
"""Which tokens of a row, by their order: a slice, numbers, a boolean for each from 0 on, or nothing: all of them."""

WHOLE = (torch.int64, torch.int32)


def cropped(at: Positions, tokens: int | Tensor, batch: int) -> Positions:
    """Without those whose order is `tokens` (a number, or [B]) or later.

    Raises ValueError for a negative number, and for another number of rows.
    """
    is_number = checks.is_whole(tokens) or (isinstance(tokens, Tensor) and tokens.dtype in WHOLE)
    limit = torch.as_tensor(tokens, device=at.order.device) if is_number else None
    if limit is None or limit.dim() > 1 or limit.numel() not in (1, batch) or int(limit.min()) < 0:
        raise ValueError(
            f"crop to a number of tokens, 0 or more, or to one for each of the {batch} rows, got {checks.shown(tokens)}"
        )
    return without(at, at.order >= limit.reshape(-1, 1))


def forgotten(at: Positions, gone: Tensor, batch: int, *, renumber: bool, rows: Tokens) -> Positions:
    """Without the tokens for which `gone` [B or 1, S] is true, in all rows or in some; with `renumber` without gaps.

    Then the order of those that stay counts up from the first one that was held, and each run of forgotten tokens takes
    no room: the token behind it stands where the first of them stood. Documents are closed up each for itself.
    Raises ValueError for gaps in more than one axis.
    """
    before, touched = at, rows_touched(rows, batch, at.device)
    at = without(at, gone if touched is None else gone & touched[:, None])
    if not renumber or bool((at.order.amax(1) < 0).all()):
        return at
    held, stays = (before.order >= 0).expand_as(at.order), at.order >= 0
    last = torch.iinfo(before.order.dtype).max
    was = before.order.expand_as(at.order).masked_fill(~held, last)
    by_order = was.argsort(dim=1, stable=True)
    was, held, stays = (fact.gather(1, by_order) for fact in (was, held, stays))
    order = was[:, :1] + stays.cumsum(1) - 1
    place = order if before.unit_step else place_closed_up(before, by_order, held, stays)
    back = by_order.argsort(1)
    order, place = order.masked_fill(~stays, -1).gather(1, back), place.gather(1, back)
    if touched is not None:
        order = torch.where(touched[:, None], order, at.order)
        place = torch.where(touched[:, None], place, before.coords[..., 0])
    coords = place.to(before.coords.dtype)[..., None]
    return at.changed(coords=coords, order=order, contiguous=False, extent=None, loose=False)


def without(at: Positions, gone: Tensor) -> Positions:
    """Without the tokens for which `gone` [B or 1, S] is true."""
    gone = gone & (at.order >= 0)
    if not bool(gone.any()):
        return at
    order = at.order.expand_as(gone).masked_fill(gone, -1)
    return at.changed(order=order, contiguous=False, loose=False)


def place_closed_up(before: Positions, by_order: Tensor, held: Tensor, stays: Tensor) -> Tensor:
    """The coordinates [B, S], in the order of tokens, where the step behind each forgotten token is taken out."""
    if before.axes != 1:
        raise ValueError(
            f"gaps close along one axis, and these tokens stand on {before.axes}; give renumber=False, or say where "
            f"they are with move(tokens, to=positions)"
        )
    place = before.coords[..., 0].expand_as(by_order).gather(1, by_order)
    step = torch.zeros_like(place)
    step[:, :-1] = torch.where(held[:, 1:], place[:, 1:] - place[:, :-1], 0)
    index = torch.arange(place.shape[1], device=place.device).expand_as(by_order)
    begins = torch.zeros_like(index)
    if before.document is not None:
        document = before.document.expand_as(by_order).gather(1, by_order)
        new = document[:, 1:] != document[:, :-1]
        step[:, :-1] = step[:, :-1].masked_fill(new, 0)
        begins[:, 1:] = torch.where(new, index[:, 1:], 0)
        begins = begins.cummax(1).values
    removed = step.masked_fill(stays, 0)
    total = removed.cumsum(1) - removed
    return place - (total - total.gather(1, begins))


def moved(at: Positions, moving: Tensor, *, by: int | None = None, to: int | Positions | None = None) -> Positions:
    """Some tokens [B or 1, S] elsewhere: `by` so many places, or `to` a place, where the first of them then stands.

    A whole number moves order and coordinate alike. Positions say of each of the tokens, in their order, where it is;
    where these are loose (Positions.of(ids)) the tokens keep their order, and only their coordinates change.

    Raises ValueError unless one of the two is given, for positions of another number of tokens, for a whole number
    where tokens stand on several axes, and where a token would come before 0 or upon another one.
    """
    if (by is None) == (to is None):
        raise ValueError("say where tokens move: by=a number of places, or to=a place or Positions")
    if isinstance(to, Positions):
        return checked(at, placed(at, moving, to))
    if at.axes != 1:
        raise ValueError(
            f"a number moves tokens along one axis, and these stand on {at.axes}; say where they are with to=positions"
        )
    if to is not None:
        first = at.order.expand_as(moving).masked_fill(~moving, torch.iinfo(at.order.dtype).max).amin(1, keepdim=True)
        far = checks.whole("the place that tokens move to", to, 0) - first
    else:
        far = torch.full((1, 1), checks.whole("by", by), device=at.order.device)
    far = torch.where(moving, far, 0)
    coords = at.coords + far[..., None].to(at.coords.dtype)
    order = at.order + far
    lowest = int(torch.where(moving, order, 0).min())
    if lowest < 0:
        raise ValueError(f"a token would come to order {lowest}, before the first place, 0; move it by less")
    return checked(at, at.changed(coords=coords, order=order, contiguous=False, extent=None, loose=False))


def placed(at: Positions, moving: Tensor, to: Positions) -> Positions:
    """The tokens that move, at positions given for them in their order."""
    moves = moving.sum(1)
    if bool((moves[moves > 0] != to.tokens).any()):
        raise ValueError(f"got positions of {to.tokens} tokens for the {int(moves.max())} that move; give one for each")
    if to.axes != at.axes:
        raise ValueError(f"the tokens stand on {at.axes} axes, got positions with {to.axes}; give as many")
    # Rows that shared one place may get places of their own.
    rows = max(moving.shape[0], to.order.shape[0], to.coords.shape[0])
    last, moving = torch.iinfo(at.order.dtype).max, moving.expand(rows, -1)
    by_order = at.order.expand_as(moving).masked_fill(~moving, last).argsort(dim=1, stable=True)
    number = by_order.argsort(1).clamp(max=to.tokens - 1)

    def of_moving(new: Tensor, old: Tensor) -> Tensor:
        axes = (..., *(None,) * (new.dim() - 2))
        return torch.where(moving[axes], new.take_along_dim(number[axes], 1), old)

    document = at.document
    if to.document is not None:
        document = of_moving(to.document, torch.zeros_like(at.order) if document is None else document)
    order = at.order.expand_as(moving) if to.loose else of_moving(to.order, at.order)
    return at.changed(
        coords=of_moving(to.coords, at.coords),
        order=order,
        document=document,
        unit_step=at.unit_step and to.unit_step and not to.loose,
        contiguous=False,
        extent=None,
        loose=False,
    )


def checked(before: Positions, at: Positions) -> Positions:
    """Raises ValueError where tokens of one row came upon each other."""
    if upon_each_other(at.order).numel() > upon_each_other(before.order).numel():
        order = int(upon_each_other(at.order)[0])
        raise ValueError(
            f"two tokens of a row would have order {order}; make room first, or forget what is there with drop(...)"
        )
    return at


def upon_each_other(order: Tensor) -> Tensor:
    """The orders that several tokens of a row have."""
    ordered = order.sort(1).values
    return ordered[:, 1:][(ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)]


def spliced(at: Positions | None, other: Positions, place: int) -> tuple[Positions | None, Positions]:
    """Where the tokens of both stand when those of `other` come in front of the token of order `place`.

    Raises ValueError where either is of several documents, or does not count up by one, and for a place with nothing
    in front of it.
    """
    for held in (other,) if at is None else (at, other):
        if held.document is not None or not held.unit_step:
            raise ValueError(
                "only tokens of one document that count up by one can be spliced; move what else there is with "
                "move(tokens, to=positions)"
            )
    held = 0 if at is None else int(at.order.amax(1).min()) + 1
    if checks.whole("the place to splice at", place, 0) > held:
        raise ValueError(f"the cache holds {held} tokens, and nothing can be put at {place}")
    last = torch.iinfo(other.order.dtype).max
    first = other.order.masked_fill(other.order < 0, last).amin(1, keepdim=True)
    inserted = with_order(other, torch.where(other.order < 0, other.order, other.order - first + place))
    if at is None:
        return None, inserted
    room = (other.order.amax(1, keepdim=True) - first + 1).clamp(min=0)
    return with_order(at, torch.where(at.order >= place, at.order + room, at.order)), inserted


def with_order(at: Positions, order: Tensor) -> Positions:
    """The same tokens, in steps of one, at these orders."""
    coords = order.clamp(min=0)[..., None].to(at.coords.dtype)
    return at.changed(coords=coords, order=order, contiguous=False, extent=None, loose=False)


def noticed(at: Positions) -> Positions:
    """The same positions, with the facts that looking at them tells: what all rows share, and what counts up by one."""
    facts = at.tensors()
    shared = {name: fact[:1] for name, fact in facts.items() if bool((fact == fact[:1]).all())}
    if len(shared) == len(facts):
        at = at.changed(**shared)
    order, place = at.order, at.coords[..., 0]
    contiguous = bool((order[:, 1:] == order[:, :-1] + 1).all()) and bool((order >= 0).all())
    contiguous = contiguous and bool((order == order[:1]).all()) and at.document is None
    unit_step = at.axes == 1 and bool(((place == order) | (order < 0)).all())
    # Places that were given for themselves keep the gaps that they have.
    first = order.masked_fill(order < 0, torch.iinfo(order.dtype).max).amin(1)
    unit_step = unit_step and (at.unit_step or bool((order.amax(1) - first < (order >= 0).sum(1)).all()))
    if contiguous and unit_step and at.horizon is None and not at.coords.is_floating_point():
        return Counted(at.tokens, int(order[0, 0]), at.device)
    return at.changed(contiguous=contiguous, unit_step=unit_step, extent=extent_of(at), loose=False)


def extent_of(at: Positions) -> int | None:
    """The number above all coordinates, where these are whole and none is below 0."""
    whole = not at.coords.is_floating_point() and bool((at.coords >= 0).all())
    return int(at.coords.max()) + 1 if whole else None


def chosen(at: Positions, tokens: Tokens, batch: int, rows: Tokens = None) -> Tensor:
    """Which of the held tokens are meant, [B or 1, S]; only those of some rows where these are named.

    Raises ValueError for what says no tokens, and for numbers of tokens that no row holds.
    """
    held, total, touched = at.order >= 0, int(at.order.max()) + 1, rows_touched(rows, batch, at.device)
    if touched is not None:
        held = held & touched[:, None]
    if tokens is None:
        return held
    if isinstance(tokens, slice):
        tokens = range(*tokens.indices(total))
    if checks.is_whole(tokens):
        tokens = [tokens]
    if isinstance(tokens, (range, list, tuple)) and all(checks.is_whole(token) for token in tokens):
        tokens = torch.tensor(list(tokens), dtype=torch.long)
    wrong = not isinstance(tokens, Tensor) or tokens.dtype not in (*WHOLE, torch.bool) or tokens.dim() not in (1, 2)
    if wrong or (tokens.dim() == 2 and tokens.shape[0] not in (1, batch)):
        raise ValueError(
            f"say which tokens by a slice, by numbers from 0 to {total - 1}, or by a boolean for each, [tokens] or "
            f"[{batch}, tokens]; got {checks.shown(tokens)}"
        )
    tokens = tokens.to(at.order.device)
    tokens = tokens[None] if tokens.dim() == 1 else tokens
    if tokens.dtype != torch.bool:
        if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= total):
            raise ValueError(f"the cache holds tokens of order 0 to {total - 1}, got {checks.shown(tokens)}")
        said = torch.zeros(tokens.shape[0], total, dtype=torch.bool, device=tokens.device)
        tokens = said.scatter(1, tokens.long(), True)
    elif tokens.shape[1] != total:
        raise ValueError(f"the cache holds {total} tokens, got a boolean for {tokens.shape[1]}; give one for each")
    several = max(tokens.shape[0], at.order.shape[0])
    return tokens.expand(several, -1).gather(1, at.order.clamp(min=0).expand(several, -1)) & held


def rows_touched(rows: Tokens, batch: int, device: torch.device | None) -> Tensor | None:
    """Which rows are meant, [B]; None for all of them. Raises ValueError for rows that there are not."""
    if rows is None:
        return None
    said = torch.zeros(batch, dtype=torch.bool, device=device)
    said[row_numbers([rows] if checks.is_whole(rows) else rows, batch).to(said.device)] = True
    return said


def row_numbers(rows: object, batch: int) -> Tensor:
    """Rows of the batch by their numbers, [any number]. Raises ValueError for what are no numbers of rows."""
    numbers = rows
    if isinstance(rows, (list, tuple, range)) and rows and all(checks.is_whole(row) for row in rows):
        numbers = torch.tensor(list(rows))
    wrong = not isinstance(numbers, Tensor) or numbers.dim() != 1 or numbers.dtype not in WHOLE or not len(numbers)
    if wrong or int(numbers.min()) < 0 or int(numbers.max()) >= batch:
        raise ValueError(
            f"choose rows of the batch by numbers from 0 to {batch - 1}, of shape [rows], got {checks.shown(rows)}"
        )
    return numbers
