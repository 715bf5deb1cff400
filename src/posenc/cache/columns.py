"""Keys without the columns that hold no token."""

from dataclasses import replace

from torch import Tensor

from posenc.cache.memory import index_of
from posenc.cache.operations import noticed
from posenc.encoding.keys import Keys
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import once


def compact(keys: Keys) -> Keys | None:
    """The keys of the tokens that are still held; None where none is."""
    columns, at = once(keys.at, (left,), lambda: left(keys.at))
    if at is None:
        return None
    return replace(keys if columns is None else chosen_columns(keys, columns), at=at)


def left(at: Positions) -> tuple[slice | Tensor | None, Positions | None]:
    """Which of the S columns of tokens are still to be held, None for all; and what stands in them, None for nothing.

    Where all rows forgot the same tokens these columns go; else the tokens of each row move together.
    """
    held = at.order >= 0
    most = int(held.sum(1).max())
    if most == 0:
        return None, None
    if most == at.tokens:
        return None, noticed(at)
    if bool((held == held[:1]).all()):
        index = held[:1].nonzero()[:, 1]
        if int(index[-1]) == most - 1:
            columns: slice | Tensor = slice(0, most)
        else:
            columns = index[None]
    else:
        columns = (~held).byte().argsort(dim=1, stable=True)[:, :most]
    return columns, noticed(at_columns(at, columns))


def at_columns(at: Positions, columns: slice | Tensor) -> Positions:
    """Where some tokens stand, a slice or numbers [B or 1, n]."""
    facts = {name: of_columns(fact, columns, 1) for name, fact in at.tensors().items() if name != "horizon"}
    return at.changed(**facts, contiguous=False, extent=None)


def chosen_columns(keys: Keys, columns: slice | Tensor) -> Keys:
    """The keys of some tokens, a slice or numbers [B or 1, n]; where they are is left to the caller."""
    turned = None if keys.turned is None else of_columns(keys.turned, columns, 1)
    return replace(keys.each(lambda name, fact: of_columns(fact, columns, 2)), turned=turned)


def of_columns(fact: Tensor, index: slice | Tensor, axis: int) -> Tensor:
    """Some tokens, a slice or numbers [B or 1, n], of a fact that has them along an axis behind that of the rows."""
    if isinstance(index, slice):
        return fact[(slice(None),) * axis + (index,)]
    if index.shape[0] == 1:
        return fact.index_select(axis, index[0])
    return fact.take_along_dim(index_of(index, fact, axis), axis)
