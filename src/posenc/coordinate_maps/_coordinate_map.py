"""What a coordinate map is: who is placed together, and what each draw comes from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from posenc import checks
from posenc.specs.registry import Named
from posenc.tokens.positions import Positions


@dataclass(frozen=True, kw_only=True)
class CoordinateMap(Named):
    """Base of the maps: frozen numbers, printed as they are written in a spec. A subclass places one document."""

    reads_ids: ClassVar[bool] = False

    seed = 0

    def evaluated(self) -> "CoordinateMap | None":
        """The map that evaluation takes where training takes this one; None: tokens as they stand."""
        return self

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        """The new coordinates [n, A] of one document's tokens, from the old ones, in their causal order.

        ids [n] are the token ids, where the map reads them.
        """
        raise NotImplementedError

    def __call__(
        self, at: Positions, ids: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Positions:
        """The same tokens elsewhere; padding stays where it is.

        ids        token ids [T] or [B, T], for the maps that read them
        generator  what to draw from (on the CPU); default: a fresh one from the map's seed
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
        placed = []
        for row in range(rows):
            # Each row, and each document in it, has a stream of its own: a neighbour's length changes no draw.
            stream = branch(master)
            for document in documents(at, row):
                placed.append((row, document, self.place(old[row, document], tokens[row, document], branch(stream))))
        coords = old.to(reduce(torch.promote_types, (new.dtype for _, _, new in placed), old.dtype)).clone()
        for row, document, new in placed:
            coords[row, document] = new.to(coords.dtype)
        return at.with_coords(coords.to(at.coords.device))


def branch(generator: torch.Generator) -> torch.Generator:
    """A generator of its own, seeded by one draw from another."""
    seed = torch.randint(2**62, (), generator=generator, device="cpu")
    return torch.Generator("cpu").manual_seed(int(seed))


def documents(at: Positions, row: int) -> Iterator[Tensor]:
    """The token indices of every document of a row, each in causal order, without padding."""
    order = at.order[row if at.order.shape[0] > 1 else 0].cpu()
    tokens = order.argsort(stable=True)
    tokens = tokens[order[tokens] >= 0]
    if at.document is None:
        if tokens.numel():
            yield tokens
        return
    document = at.document[row if at.document.shape[0] > 1 else 0].cpu()[tokens]
    for one in dict.fromkeys(document.tolist()):
        yield tokens[document == one]


def one_axis(who: CoordinateMap, coords: Tensor, longest: float = math.inf) -> None:
    """Raises ValueError for a document [n, axes] of more axes than one, or of more tokens than `longest`."""
    n, axes = coords.shape
    if axes != 1:
        raise ValueError(f"{who} counts along one axis, got positions with {axes} axes")
    if n > longest:
        raise ValueError(
            f"{who} has {longest} positions, too few for a document of {n} tokens; choose longest={n} or more"
        )


def in_runs(ids: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Which of the tokens [n] are digits, and how many digits stand before each one in its number."""
    digit = (ids >= first) & (ids < first + count)
    token = torch.arange(len(ids), device="cpu")
    # The last token that was no digit is where a number's count begins.
    last = torch.where(digit, -1, token).cummax(0).values
    return digit, token - last - 1
