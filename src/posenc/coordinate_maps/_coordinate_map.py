"""The base class of coordinate maps: it maps document by document, each with random numbers of its own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from posenc import checks
from posenc.specs.registry import SpecObject
from posenc.tokens.positions import Positions


@dataclass(frozen=True, kw_only=True)
class CoordinateMap(SpecObject):
    """Base of the maps: a frozen dataclass, printed as its spec. A subclass places one document."""

    reads_ids: ClassVar[bool] = False

    seed = 0

    def for_evaluation(self) -> "CoordinateMap | None":
        """Return the map to evaluate with after training with this one; None for unchanged positions."""
        return self

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        """Return the new coordinates [n, A] of one document's tokens from their old ones, in causal order.

        ids [n] are the token ids, if the map reads them.
        """
        raise NotImplementedError

    def __call__(
        self, at: Positions, ids: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Positions:
        """Return the positions with mapped coordinates; padding stays where it is.

        ids        token ids [T] or [B, T], for the maps that read them
        generator  source of random numbers (on the CPU); default: a fresh one from the map's seed
        Raises ValueError for missing ids, or ids that do not fit the positions.
        """
        rows = max(at.order.shape[0], at.coords.shape[0])
        if self.reads_ids and ids is None:
            raise ValueError(f"{self} reads token ids; give ids of shape [B, T] beside the positions")
        ids = torch.zeros(1, at.tokens, dtype=torch.long, device="cpu") if ids is None else checks.tensor("ids", ids)
        tokens = torch.atleast_2d(ids).cpu()
        fits = tokens.shape[1:] == (at.tokens,) and (tokens.shape[0] == rows or 1 in (tokens.shape[0], rows))
        if not fits:
            raise ValueError(
                f"ids must have shape [{rows}, {at.tokens}] to go with the positions, got {list(tokens.shape)}"
            )
        rows = max(rows, tokens.shape[0])
        old, tokens = at.coords.cpu().expand(rows, -1, -1), tokens.expand(rows, -1)
        master = torch.Generator("cpu").manual_seed(self.seed) if generator is None else generator
        pieces = []
        for row in range(rows):
            # Each row, and each document in it, has a generator of its own: a neighbour's length changes no draw.
            stream = branch(master)
            for document in documents(at, row):
                pieces.append((row, document, self.place(old[row, document], tokens[row, document], branch(stream))))
        coords = old.to(reduce(torch.promote_types, (new.dtype for _, _, new in pieces), old.dtype)).clone()
        for row, document, new in pieces:
            coords[row, document] = new.to(coords.dtype)
        return at.with_coords(coords.to(at.coords.device))


def branch(generator: torch.Generator) -> torch.Generator:
    """Return a new generator, seeded by one draw from another."""
    seed = torch.randint(2**62, (), generator=generator, device="cpu")
    return torch.Generator("cpu").manual_seed(int(seed))


def documents(at: Positions, row: int) -> Iterator[Tensor]:
    """Yield the token indices of each document of a row, in causal order, without padding."""
    order = at.order[row if at.order.shape[0] > 1 else 0].cpu()
    tokens = order.argsort(stable=True)
    tokens = tokens[order[tokens] >= 0]
    if at.document is None:
        if tokens.numel():
            yield tokens
        return
    document = at.document[row if at.document.shape[0] > 1 else 0].cpu()[tokens]
    for number in dict.fromkeys(document.tolist()):
        yield tokens[document == number]


def check_one_axis(owner: CoordinateMap, coords: Tensor, longest: float = math.inf) -> None:
    """Raise ValueError for a document [n, axes] of more than one axis, or of more than `longest` tokens."""
    n, axes = coords.shape
    if axes != 1:
        raise ValueError(f"{owner} counts along one axis, got positions with {axes} axes")
    if n > longest:
        raise ValueError(
            f"{owner} has {longest} positions, too few for a document of {n} tokens; choose longest={n} or more"
        )


def digit_places(ids: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return which tokens [n] are digits, and how many digits precede each in its number."""
    digit = (ids >= first) & (ids < first + count)
    token = torch.arange(len(ids), device="cpu")
    # A number's count begins after the last token that is no digit.
    last = torch.where(digit, -1, token).cummax(0).values
    return digit, token - last - 1
