"""What a target is, and what all of them ask of an encoding."""

import math
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.encoding.biases import check_heads
from posenc.encodings.rotations import Rotations
from posenc.kernels.flash import slopes_in
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

INSTEAD = {
    "embed": ("adds to the embeddings", "call it on them, and hand out the rest of the sum"),
    "by_distance": (
        "biases logits",
        "hand out the rest, and give encoding.bias(at) to your attention as a mask; or take to='flex_attention'",
    ),
    "biases": ("biases logits by more than a distance", "run it in posenc.Attention(..., kernel='flex')"),
    "attend": ("replaces the attention rule", "run it in posenc.Attention"),
    "remember": ("remembers facts of each token", "run it in posenc.Attention"),
}
"""What an encoding does through a door that a target lacks, and what to do instead."""

WITH_TABLES = "take a target with tables of cosines and sines, such as flash_attention"
WITH_ROWS = "take a target with a row for each token: flash_attention, liger or transformer_engine"


@dataclass(frozen=True, eq=False)
class Target:
    """Base of what is handed out: a field for each function of the target, with the arguments of one call.

    A field is called as the function, and holds a dict of its own arguments; or None, where no such call is needed.
    """

    title: ClassVar[str]
    """What the target is called."""

    takes: ClassVar[str]
    """What it takes of an encoding, as errors say it."""

    doors: ClassVar[frozenset[str]] = frozenset({"turn"})
    """The doors of an encoding that it has."""

    takes_mask: ClassVar[bool] = False
    """Whether it is told who may see whom."""

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    """The dtypes that its tables may have."""

    @classmethod
    def of(cls, wanted: "Wanted") -> "Target":
        """What is handed out for an encoding. Raises ValueError, by `Wanted.refuse`, where the target cannot say it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines by which the pairs of the first channels of a head turn, those of all heads alike.

    cos, sin  [B or 1, T, pairs] in float64, times the temperature
    layout    which channels form a pair, as posenc.encoding.channel_pairs has it
    """

    cos: Tensor
    sin: Tensor
    layout: str

    @property
    def width(self) -> int:
        """How many channels turn."""
        return 2 * self.cos.shape[-1]

    @property
    def interleaved(self) -> bool:
        return self.layout == "interleaved"

    def cos_then_sin(self, dtype: torch.dtype) -> Tensor:
        """The table of one row of a batch as inference engines keep it, [T, 2 pairs]."""
        return torch.cat((self.cos[0], self.sin[0]), -1).to(dtype)

    @property
    def angles(self) -> Tensor:
        """The angle of each pair, from -pi to pi (radians): whole turns are left out, which keeps far ones exact."""
        return torch.atan2(self.sin, self.cos)

    @property
    def sizes(self) -> Tensor:
        """What each pair is multiplied with: the temperature."""
        return torch.hypot(self.cos, self.sin)


@dataclass(frozen=True)
class Wanted:
    """An encoding that is handed out, and what was said of it.

    target    who is to take it
    encoding  built for the shape
    at        where the tokens are
    mask      who may see whom
    dtype     of tables
    """

    target: type[Target]
    encoding: Encoding
    shape: Shape
    at: Positions
    mask: Mask
    dtype: torch.dtype

    def refuse(self, why: str, remedy: str) -> NoReturn:
        """Raises ValueError: what the target takes, what came, why that is not the same, and what to do."""
        raise ValueError(f"{self.target.title} {self.target.takes}, got {self.encoding}: {why}; {remedy}")

    def check_doors(self) -> list[Encoding]:
        """The parts of the encoding, each of which does only what the target has a door for."""
        parts = parts_of(self.encoding)
        for part in parts:
            for door in sorted(part.doors - self.target.doors, key=list(INSTEAD).index):
                does, remedy = INSTEAD[door]
                self.refuse(f"{self.called(part)} {does}", remedy)
            self.at.coordinates(part.axes, part)
        return parts

    def called(self, *parts: Encoding) -> str:
        """Parts of the encoding as a sentence about it calls them."""
        return "it" if parts == (self.encoding,) else " and ".join(map(str, parts))

    def turning(self) -> Rotations | None:
        """The part that turns queries and keys; None where none does."""
        turning = [part for part in self.check_doors() if "turn" in part.doors]
        if not turning:
            return None
        part = turning[0]
        if len(turning) > 1 or not isinstance(part, Rotations):
            self.refuse(
                f"{self.called(*turning)} {'turns' if len(turning) == 1 else 'turn'} by other rules than one table of "
                f"cosines and sines for the queries and keys of all heads",
                "turn them before by q, k = encoding(q, k)",
            )
        checks.built_for(part, "head_dim", part.head_dim, self.shape.head_dim, "heads of {} channels")
        return part

    def rotation(self, at: Positions | None = None) -> Rotation:
        """How the tokens turn, those of some other positions where they are given; refused where none do."""
        part = self.turning()
        if part is None:
            self.refuse("nothing turns", "leave the call out")
        at = self.at if at is None else at
        cos, sin = part.table(at.to("cpu"), torch.float64, torch.device("cpu"))[:, :, 0]
        return Rotation(cos.to(at.order.device), sin.to(at.order.device), part.layout)

    def shared_rotation(self) -> Rotation:
        """How the tokens turn, in every row of a batch alike."""
        rotation = self.rotation()
        if rotation.cos.shape[0] > 1:
            self.refuse(
                f"the {rotation.cos.shape[0]} rows of the batch have positions or horizons of their own, and one "
                f"table is for all of them",
                "hand out each row by itself",
            )
        return rotation

    def rotation_by_position(self) -> tuple[Rotation, Tensor]:
        """How tokens at 0, 1, 2, ... turn, and the ids [B or 1, T] of ours among them."""
        coords = self.at.coords
        if coords.shape[-1] != 1 or coords.is_floating_point():
            found = f"{coords.shape[-1]} axes" if coords.shape[-1] != 1 else "fractions"
            self.refuse(
                f"rows of its table are asked for by whole positions on one axis, and these have {found}", WITH_ROWS
            )
        ids = coords[..., 0]
        counted = Positions.count(max(int(ids.max()) + 1, self.shape.max_len), device=ids.device)
        rotation = self.rotation(counted.with_horizon(self.at.horizon))
        if rotation.cos.shape[0] > 1:
            self.refuse("each row of the batch declares a horizon of its own", "hand out each row by itself")
        return rotation, ids

    def first_of_count(self) -> int:
        """Where the first token is, of tokens that count up by one in every row of a batch alike."""
        coords = self.at.coords[..., 0]
        if self.at.axes != 1 or coords.shape[0] > 1 or bool((coords.diff() != 1).any()) or coords[0, 0] % 1:
            self.refuse(
                "positions are counted up by one from a whole number, in every row alike, and these are others",
                f"give positions=Positions.count(tokens, start), or {WITH_ROWS}",
            )
        return int(coords[0, 0])

    def slopes(self) -> Tensor | None:
        """The slope [H] of each head, where all that is added to a logit is -slope |distance|; None for nothing.

        It is asked of the numbers, at every distance that tokens may meet.
        """
        biased = [part for part in self.check_doors() if "by_distance" in part.doors]
        if not biased:
            return None
        self.first_of_count()
        reach = max(self.at.tokens, self.shape.max_len, 2)
        first = 0 if self.mask.causal else 1 - reach
        delta = torch.arange(first, reach, dtype=torch.float64, device=self.at.order.device)
        values = delta.new_zeros(self.shape.heads, len(delta))
        for part in biased:
            added = part.by_distance(delta)
            assert added is not None
            check_heads(part, added, 1, self.shape.heads)
            values = values + added
        slopes = slopes_in(values, delta)
        if slopes is None or not slopes.any():
            self.refuse(
                f"{self.called(*biased)} {'adds' if len(biased) == 1 else 'add'} another function of the distance, or "
                f"nothing at all before training",
                "take to='flex_attention'",
            )
        return slopes

    def scale(self, rotation: Rotation) -> float:
        """The factor of the logits, head_dim^-1/2, times the square of the temperature: for a target without tables.

        Refused where only some channels have the temperature.
        """
        temperature = rotation.sizes.mean().item()
        if not torch.allclose(rotation.sizes, rotation.sizes.mean(), rtol=1e-9):
            self.refuse("pairs are stretched by different factors", WITH_TABLES)
        if math.isclose(temperature, 1, rel_tol=1e-9):
            return self.shape.head_dim**-0.5
        if rotation.width != self.shape.head_dim:
            self.refuse(
                f"the {rotation.width} channels that turn are multiplied by a temperature of {temperature:.6g}, and "
                f"the other {self.shape.head_dim - rotation.width} are not, which no factor of the logits says",
                WITH_TABLES,
            )
        return self.shape.head_dim**-0.5 * temperature**2
