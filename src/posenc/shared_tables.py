"""Tables that live as long as the positions they were computed from, and whether those were changed in place since."""

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from posenc.positions import TENSORS, Positions
from posenc.watched import is_watched

Table = TypeVar("Table")


def once(at: Positions, key: Hashable, make: Callable[[], Table]) -> Table:
    """The table that `make` computes from these positions, computed once and shared by all layers that ask.

    No result may depend on whether the table was there, so `key` must name everything that `make` reads besides the
    positions: encodings ask through `Encoding.once`, which makes it. Positions live for one forward pass, and so do
    their tables; nothing is kept under compilation, where the graph itself shares equal computations.
    """
    if torch.compiler.is_compiling() or is_watched():
        return make()
    # A table made in inference mode cannot be saved for backward, and one made without gradients has none.
    key = (key, version(at), torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    if key not in at.tables:
        table = make()
        # A graph serves one backward pass.
        if isinstance(table, Tensor) and table.requires_grad:
            return table
        at.tables[key] = table
    return at.tables[key]


def version(at: Positions) -> tuple[int, ...]:
    """How often whoever holds the tensors of these positions has changed them in place; 0 before they are made.

    Inference mode does not count it.
    """
    made = [vars(at).get(name) for name in TENSORS]
    return tuple([0 if fact is None or fact.is_inference() else fact._version for fact in made])


def versions(*of: Positions) -> tuple[tuple[int, ...], ...]:
    """How often each of these was changed in place, for `check_versions` in a backward pass that reads them again."""
    return tuple(version(at) for at in of)


def check_versions(before: tuple[tuple[int, ...], ...], *of: Positions) -> None:
    """Raises RuntimeError where positions were changed in place since."""
    if versions(*of) != before:
        raise RuntimeError(
            "positions that the backward pass reads again were changed in place after the forward pass; give each call "
            "its own, as Positions.of(ids.clone())"
        )
