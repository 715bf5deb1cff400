"""Compaction: remove the columns of keys that hold no token."""

from dataclasses import replace

from torch import Tensor

from posenc.cache.memory import expanded_index
from posenc.cache.operations import with_inferred_fields
from posenc.encoding.keys import Keys
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once


def compact(keys: Keys) -> Keys | None:
    """Return the keys without empty columns; None if no token is left."""
    columns, at = once(keys.at, (remaining_columns,), lambda: remaining_columns(keys.at))
    if at is None:
        return None
    return replace(keys if columns is None else keys_of_columns(keys, columns), at=at)


def remaining_columns(at: Positions) -> tuple[slice | Tensor | None, Positions | None]:
    """Return the columns to keep (None: all) and their positions (None: no token is left).

    If all rows dropped the same tokens, those columns are removed; otherwise each row closes up its own gaps.
    """
    is_held = at.order >= 0
    longest = int(is_held.sum(1).max())
    if longest == 0:
        return None, None
    if longest == at.tokens:
        return None, with_inferred_fields(at)
    if bool((is_held == is_held[:1]).all()):
        shared_columns = is_held[:1].nonzero()[:, 1]
        if int(shared_columns[-1]) == longest - 1:
            columns: slice | Tensor = slice(0, longest)
        else:
            columns = shared_columns[None]
    else:
        columns = (~is_held).byte().argsort(dim=1, stable=True)[:, :longest]
    return columns, with_inferred_fields(positions_of_columns(at, columns))


def positions_of_columns(at: Positions, columns: slice | Tensor) -> Positions:
    """Return the positions of some columns: a slice or indices [B or 1, n]."""
    facts = {name: fact_columns(fact, columns, 1) for name, fact in at.tensors().items() if name != "horizon"}
    return at.with_facts(**facts, contiguous=False, extent=None)


def keys_of_columns(keys: Keys, columns: slice | Tensor) -> Keys:
    """Return the keys of some columns (a slice, or indices [B or 1, n]). The caller sets the positions."""
    rotated_at = None if keys.turned is None else fact_columns(keys.turned, columns, 1)
    return replace(keys.each(lambda name, fact: fact_columns(fact, columns, 2)), turned=rotated_at)


def fact_columns(fact: Tensor, index: slice | Tensor, axis: int) -> Tensor:
    """Return columns (a slice, or indices [B or 1, n]) of a fact. Its tokens lie along `axis`, 1 or later."""
    if isinstance(index, slice):
        return fact[(slice(None),) * axis + (index,)]
    if index.shape[0] == 1:
        return fact.index_select(axis, index[0])
    return fact.take_along_dim(expanded_index(index, fact, axis), axis)
