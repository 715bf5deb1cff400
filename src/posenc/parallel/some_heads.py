"""What an encoding is for some of a model's heads alone: built for as many, and held to its numbers among all."""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc import kernels
from posenc.encoding.base import Compose, Encoding, arguments_of
from posenc.encoding.chosen_heads import OnHeads
from posenc.encoding.keys import Keys
from posenc.model.seeding import seeded
from posenc.tokens import masks
from posenc.tokens.positions import Positions

TOKENS = 4
"""How many tokens a comparison has."""

CLOSE = 1e-9
"""How near the numbers of some heads have to be to those among all, in float64."""


class RowsOf(Encoding):
    """A bias by distance on some of the heads that it is for: their rows, whatever they are computed from."""

    def __init__(self, encoding: Encoding, heads: Sequence[int]) -> None:
        super().__init__()
        self.encoding, self.heads = encoding, tuple(heads)
        self.axes, self.per_layer = encoding.axes, encoding.per_layer

    def by_distance(self, delta: Tensor) -> Tensor | None:
        values = self.encoding.by_distance(delta)
        assert values is not None
        return values[list(self.heads)]

    def __repr__(self) -> str:
        return f"{self.encoding} of heads {self.heads}"

    __str__ = __repr__


@dataclass(frozen=True)
class Part:
    """Where a parameter of fewer heads belongs in that of all.

    axis   along which the heads stand, each with as many entries
    heads  which of them it has
    of     how many there are
    whole  the parameter of all heads that it was cut from
    """

    axis: int
    heads: tuple[int, ...]
    of: int
    whole: nn.Parameter = field(repr=False)


@dataclass
class OfHeads:
    """Encodings of some heads, made out of those of all heads of a model.

    heads     which of the query heads
    of        how many query heads the model has
    kv_heads  how many key heads it has
    head_dim  width of one head (channels)
    dim       width of the model (channels)
    parts     what was cut of a parameter: the new parameter -> its place in the old one
    made      what was made of each encoding
    """

    heads: tuple[int, ...]
    of: int
    kv_heads: int
    head_dim: int
    dim: int
    parts: dict[nn.Parameter, Part] = field(default_factory=dict)
    made: dict[Encoding, Encoding] = field(default_factory=dict)

    def __call__(self, encoding: Encoding) -> Encoding:
        """The encoding for these heads; the same object where all heads are alike to it.

        Raises ValueError, naming it, for an encoding that is not the same for some of its heads alone.
        """
        if encoding not in self.made:
            self.made[encoding] = self.checked(encoding)
        return self.made[encoding]

    def checked(self, encoding: Encoding) -> Encoding:
        if isinstance(encoding, Compose):
            return Compose(*map(self, encoding.parts))
        if encoding.doors <= {"embed"}:
            return encoding
        if "embed" in encoding.doors:
            raise ValueError(
                f"{encoding} both adds to embeddings, which is the same on all ranks, and enters attention, where each "
                f"rank has heads of its own; use two encodings"
            )
        # A copy shows it first: with numbers apart, in which no head is like another by chance.
        tried = copy.deepcopy(encoding).to("cpu", torch.float64)
        with seeded(0), torch.no_grad():
            for parameter in tried.parameters():
                parameter += torch.rand_like(parameter)
        shares = [range(start, start + len(self.heads)) for start in range(0, self.of, len(self.heads))]
        of_all_ranks = [replace(self, heads=tuple(heads), parts={}, made={}) for heads in shares]
        for way in (OfHeads.built, OfHeads.rows):
            # It is tried for the heads of all ranks: they must not decide otherwise, since they act together.
            if all(one.same(tried, way(one, tried)) for one in of_all_ranks):
                found = way(self, encoding)
                assert found is not None
                return found
        raise ValueError(
            f"{encoding} is not, for the heads {self.heads} of {self.of} alone, what it is among all of them, so it "
            f"cannot be cut by heads; keep all heads on every rank, or cut the sequence with shard_sequence"
        )

    def built(self, encoding: Encoding) -> Encoding | None:
        """The same class for fewer heads, with its part of each parameter; None where that cannot be built."""
        if isinstance(encoding, OnHeads):
            return self.on_chosen(encoding)
        given = arguments_of(encoding)
        changed: dict[str, Any] = {}
        if "encoding" in given and (inside := self(given["encoding"])) is not given["encoding"]:
            changed["encoding"] = inside
        if given.get("heads") is not None:
            changed["heads"] = len(self.heads)
        if not changed:
            return encoding
        try:
            made = type(encoding)(**given | changed)
        except ValueError:
            return None
        made.train(encoding.training)
        for name, parameter in list(made.named_parameters()):
            if "encoding" in changed and name.startswith("encoding."):
                continue
            whole = encoding.get_parameter(name)
            home, _, last = name.rpartition(".")
            part = self.part(parameter, whole)
            if part is None:
                return None
            made.get_submodule(home).register_parameter(last, part)
        return made

    def part(self, like: Tensor, whole: nn.Parameter) -> nn.Parameter | None:
        """The part of a parameter that has the shape of `like`; the whole where all heads share it."""
        if like.shape == whole.shape:
            return whole
        if like.dim() != whole.dim():
            return None
        axes = [axis for axis in range(like.dim()) if like.shape[axis] != whole.shape[axis]]
        if len(axes) != 1 or like.shape[axes[0]] * self.of != whole.shape[axes[0]] * len(self.heads):
            return None
        return self.cut(whole, axes[0], self.heads, self.of)

    def cut(self, whole: nn.Parameter, axis: int, heads: tuple[int, ...], of: int) -> nn.Parameter:
        """The part of a parameter that some of so many heads have, noted in `parts`."""
        few = whole.detach().unflatten(axis, (of, -1)).index_select(axis, torch.tensor(heads, device=whole.device))
        found = nn.Parameter(few.flatten(axis, axis + 1), requires_grad=whole.requires_grad)
        self.parts[found] = Part(axis, heads, of, whole)
        return found

    def on_chosen(self, encoding: OnHeads) -> Encoding | None:
        """An encoding on chosen heads, on those of them that are here."""
        here = [self.heads.index(head) for head in encoding.heads if head in self.heads]
        inside = encoding.encoding
        if "heads" in inspect.signature(type(inside).__init__).parameters:
            return None
        if not here:
            # What is saved has one form: where something is learned, every rank has it.
            return None if any(True for _ in inside.parameters()) else Encoding()
        return OnHeads(inside, here, len(self.heads))

    def rows(self, encoding: Encoding) -> Encoding | None:
        """Its rows, of a bias by distance; None for another encoding."""
        return RowsOf(encoding, self.heads) if encoding.doors == {"by_distance"} else None

    def same(self, whole: Encoding, some: Encoding | None) -> bool:
        """Whether attention with the whole encoding gives these heads what they get with theirs, in numbers."""
        if some is None:
            return False
        group = self.of // self.kv_heads
        keys = sorted({head // group for head in self.heads})
        axes = max(1, whole.axes)
        steps = torch.arange(TOKENS)
        coords = torch.stack([steps * (2 * axis + 1) % TOKENS for axis in range(axes)], -1)[None]
        at = Positions(coords, steps[None]).with_horizon(TOKENS)
        with seeded(1):
            q, k, v = (
                torch.randn(2, heads, TOKENS, self.head_dim, dtype=torch.float64)
                for heads in (self.of, self.kv_heads, self.kv_heads)
            )
            x = torch.randn(2, TOKENS, self.dim, dtype=torch.float64)
        wanted = attended(whole, x, q, k, v, at)[:, list(self.heads)]
        try:
            got = attended(some, x, q[:, list(self.heads)], k[:, keys], v[:, keys], at)
        except ValueError:
            return False
        return got.shape == wanted.shape and bool(((got - wanted).abs() <= CLOSE).all())


@torch.no_grad()
def attended(encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, at: Positions) -> Tensor:
    """Attention with an encoding, through all doors behind the first."""
    memo = encoding.remember(x, at)
    q, k = encoding.turn_both(q, k, at, at)
    kernel = kernels.bind("reference", encoding, scale=q.shape[-1] ** -0.5)
    return encoding.attend(q, at, Keys(k, v, at, memo, memo), masks.causal(), kernel)[0]
