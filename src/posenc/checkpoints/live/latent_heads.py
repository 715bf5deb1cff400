"""Encodings for latent attention (MLA), whose heads turn in their last channels only."""

from typing import Any

import torch
from torch import Tensor

from posenc.encoding.base import Compose, Encoding, Moves, Side, parts_of, settings_of
from posenc.encodings.wrappers import DistanceMap
from posenc.tokens.positions import Positions


class OnLastChannels(Encoding):
    """An encoding that turns the last channels of each head; those before them carry no position.

    encoding  turns heads of as many channels as it was built for, and does nothing else
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

    def moved(self, k: Tensor, before: Positions, after: Positions) -> Tensor:
        return torch.cat((k[..., : -self.width], self.encoding.moved(k[..., -self.width :], before, after)), -1)

    def __repr__(self) -> str:
        return f"{self.encoding} on the last {self.width} channels"

    __str__ = __repr__


def on_last_channels(encoding: Encoding, width: int, *, layout: str | None = None) -> Encoding:
    """The same encoding where only the last `width` channels of a head turn.

    layout  the layout in which those channels reach attention, where the model has put them into another order
    """
    if len(parts := parts_of(encoding)) > 1:
        return Compose(*(on_last_channels(part, width, layout=layout) for part in parts))
    if isinstance(encoding, DistanceMap):
        return type(encoding)(on_last_channels(encoding.encoding, width, layout=layout), **settings_of(encoding))
    if encoding.doors - {"turn"} or getattr(encoding, "head_dim", None) != width:
        return encoding
    options = settings_of(encoding)
    if layout is not None and options.get("layout", layout) != layout:
        if any(True for _ in encoding.parameters()):
            raise ValueError(f"{encoding} has parameters for another order of channels; build with layout={layout!r}")
        kind: Any = type(encoding)
        encoding = kind(width, **options | {"layout": layout})
    return OnLastChannels(encoding)
