"""Encodings for latent attention (MLA), which rotates only the last channels of a head."""

from typing import Any

import torch
from torch import Tensor

from posenc.encoding.base import Compose, Encoding, Moves, Side, parts_of, spec_options
from posenc.encodings.wrappers import DistanceMap
from posenc.tokens.positions import Positions


class OnLastChannels(Encoding):
    """An encoding of the last channels of each head; the other channels carry no position.

    encoding  rotates heads of that width, and opens no other door
    """

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.encoding, self.doors = encoding, encoding.doors
        self.turns_when_attending, self.axes, self.turns = encoding.turns_when_attending, encoding.axes, encoding.turns
        self.width: int = getattr(encoding, "head_dim")  # noqa: B009

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        return torch.cat((x[..., : -self.width], self.encoding.turn(x[..., -self.width :], at, side)), -1)

    @property
    def moves(self) -> Moves:
        return self.encoding.moves

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        return torch.cat((k[..., : -self.width], self.encoding.moved(k[..., -self.width :], old_at, new_at)), -1)

    def __repr__(self) -> str:
        return f"{self.encoding} on the last {self.width} channels"

    __str__ = __repr__


def on_last_channels(encoding: Encoding, width: int, *, layout: str | None = None) -> Encoding:
    """Return the encoding for the last `width` channels of a head.

    layout  the layout of these channels in attention, if the model permutes them on the way there
    """
    if len(parts := parts_of(encoding)) > 1:
        return Compose(*(on_last_channels(part, width, layout=layout) for part in parts))
    if isinstance(encoding, DistanceMap):
        return type(encoding)(on_last_channels(encoding.encoding, width, layout=layout), **spec_options(encoding))
    if encoding.doors - {"turn"} or getattr(encoding, "head_dim", None) != width:
        return encoding
    options = spec_options(encoding)
    if layout is not None and options.get("layout", layout) != layout:
        if any(True for _ in encoding.parameters()):
            raise ValueError(f"{encoding} has parameters for another order of channels; build with layout={layout!r}")
        kind: Any = type(encoding)
        encoding = kind(width, **options | {"layout": layout})
    return OnLastChannels(encoding)
