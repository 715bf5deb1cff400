"""The base class of targets, and the parts of an encoding that they read."""

import math
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.encoding.biases import check_head_rows
from posenc.encodings.rotations import Rotations
from posenc.kernels.flash import linear_slopes
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
"""Door -> what an encoding does through it, and the remedy if a target lacks it."""

WITH_TABLES = "take a target with tables of cosines and sines, such as flash_attention"
WITH_ROWS = "take a target with a row for each token: flash_attention, liger or transformer_engine"


@dataclass(frozen=True, eq=False)
class Target:
    """Base of a hand-out: a field for each function of the target, with the arguments of one call.

    A field has the name of the function, and holds a dict of its arguments; or None, if no call is needed.
    """

    title: ClassVar[str]
    """The name of the target."""

    takes: ClassVar[str]
    """What it takes of an encoding, for errors."""

    doors: ClassVar[frozenset[str]] = frozenset({"turn"})
    """The doors of an encoding that it supports."""

    takes_mask: ClassVar[bool] = False
    """Whether it takes a mask."""

    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    """The dtypes of its tables."""

    @classmethod
    def from_request(cls, request: "HandOutRequest") -> "Target":
        """Return the hand-out of an encoding. Raises ValueError, by `request.refuse`, if it cannot be expressed."""
        raise NotImplementedError


@dataclass(frozen=True)
class RotationTable:
    """The rotation of the first channels of a head, the same for all heads.

    cos, sin  [B or 1, T, pairs] in float64, times the temperature
    layout    which channels form a pair, as in posenc.encoding.channel_pairs
    """

    cos: Tensor
    sin: Tensor
    layout: str

    @property
    def width(self) -> int:
        """The number of channels that rotate."""
        return 2 * self.cos.shape[-1]

    @property
    def interleaved(self) -> bool:
        return self.layout == "interleaved"

    def cos_then_sin(self, dtype: torch.dtype) -> Tensor:
        """Return the table of one row of a batch as inference engines store it, [T, 2 pairs]."""
        return torch.cat((self.cos[0], self.sin[0]), -1).to(dtype)

    @property
    def angles(self) -> Tensor:
        """The angle of each pair, from -pi to pi (radians). Without whole turns far positions stay exact."""
        return torch.atan2(self.sin, self.cos)

    @property
    def sizes(self) -> Tensor:
        """The factor of each pair: the temperature."""
        return torch.hypot(self.cos, self.sin)


@dataclass(frozen=True)
class HandOutRequest:
    """The arguments of `hand_out`, checked.

    target    the target
    encoding  the encoding, built for the shape
    at        the positions of the tokens
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
        """Raise ValueError with what the target takes, what it got, the difference, and the remedy."""
        raise ValueError(f"{self.target.title} {self.target.takes}, got {self.encoding}: {why}; {remedy}")

    def check_doors(self) -> list[Encoding]:
        """Return the parts of the encoding. Raises ValueError for a part with a door that the target lacks."""
        parts = parts_of(self.encoding)
        for part in parts:
            for door in sorted(part.doors - self.target.doors, key=list(INSTEAD).index):
                does, remedy = INSTEAD[door]
                self.refuse(f"{self.subject(part)} {does}", remedy)
            self.at.coordinates(part.axes, part)
        return parts

    def subject(self, *parts: Encoding) -> str:
        """Return the subject of a sentence about parts of the encoding."""
        return "it" if parts == (self.encoding,) else " and ".join(map(str, parts))

    def turning(self) -> Rotations | None:
        """Return the part that rotates queries and keys; None without one."""
        turning = [part for part in self.check_doors() if "turn" in part.doors]
        if not turning:
            return None
        part = turning[0]
        if len(turning) > 1 or not isinstance(part, Rotations):
            self.refuse(
                f"{self.subject(*turning)} {'turns' if len(turning) == 1 else 'turn'} by other rules than one table of "
                f"cosines and sines for the queries and keys of all heads",
                "turn them before by q, k = encoding(q, k)",
            )
        checks.built_for(part, "head_dim", part.head_dim, self.shape.head_dim, "heads of {} channels")
        return part

    def rotation(self, at: Positions | None = None) -> RotationTable:
        """Return the rotation of the tokens, or at other positions. Raises ValueError if nothing rotates."""
        part = self.turning()
        if part is None:
            self.refuse("nothing turns", "leave the call out")
        at = self.at if at is None else at
        cos, sin = part.table(at.to("cpu"), torch.float64, torch.device("cpu"))[:, :, 0]
        return RotationTable(cos.to(at.order.device), sin.to(at.order.device), part.layout)

    def shared_rotation(self) -> RotationTable:
        """Return the rotation of the tokens, the same for every row of a batch."""
        rotation = self.rotation()
        if rotation.cos.shape[0] > 1:
            self.refuse(
                f"the {rotation.cos.shape[0]} rows of the batch have positions or horizons of their own, and one "
                f"table is for all of them",
                "hand out each row by itself",
            )
        return rotation

    def rotation_by_position(self) -> tuple[RotationTable, Tensor]:
        """Return the rotation at positions from 0, and the tokens' position ids [B or 1, T]."""
        coords = self.at.coords
        if coords.shape[-1] != 1 or coords.is_floating_point():
            problem = f"{coords.shape[-1]} axes" if coords.shape[-1] != 1 else "fractions"
            self.refuse(
                f"rows of its table are asked for by whole positions on one axis, and these have {problem}", WITH_ROWS
            )
        ids = coords[..., 0]
        counting = Positions.count(max(int(ids.max()) + 1, self.shape.max_len), device=ids.device)
        rotation = self.rotation(counting.with_horizon(self.at.horizon))
        if rotation.cos.shape[0] > 1:
            self.refuse("each row of the batch declares a horizon of its own", "hand out each row by itself")
        return rotation, ids

    def first_of_count(self) -> int:
        """Return the first position, of tokens that count up by one in every row of a batch."""
        coords = self.at.coords[..., 0]
        if self.at.axes != 1 or coords.shape[0] > 1 or bool((coords.diff() != 1).any()) or coords[0, 0] % 1:
            self.refuse(
                "positions are counted up by one from a whole number, in every row alike, and these are others",
                f"give positions=Positions.count(tokens, start), or {WITH_ROWS}",
            )
        return int(coords[0, 0])

    def slopes(self) -> Tensor | None:
        """Return the slope [H] of each head, for a bias of -slope |distance|; None without a bias.

        It is read from the values of the bias, at every distance that tokens may have.
        """
        biases = [part for part in self.check_doors() if "by_distance" in part.doors]
        if not biases:
            return None
        self.first_of_count()
        reach = max(self.at.tokens, self.shape.max_len, 2)
        first = 0 if self.mask.causal else 1 - reach
        delta = torch.arange(first, reach, dtype=torch.float64, device=self.at.order.device)
        values = delta.new_zeros(self.shape.heads, len(delta))
        for part in biases:
            bias = part.by_distance(delta)
            assert bias is not None
            check_head_rows(part, bias, 1, self.shape.heads)
            values = values + bias
        slopes = linear_slopes(values, delta)
        if slopes is None or not slopes.any():
            self.refuse(
                f"{self.subject(*biases)} {'adds' if len(biases) == 1 else 'add'} another function of the distance, or "
                f"nothing at all before training",
                "take to='flex_attention'",
            )
        return slopes

    def scale(self, rotation: RotationTable) -> float:
        """Return the factor of the logits, head_dim^-1/2 times the temperature squared, for a target without tables.

        Raises ValueError if only some channels have the temperature.
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
