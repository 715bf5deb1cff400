"""Rotary by a buffer of sines and cosines in every layer, as GPT-J and CodeGen have it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.kinds.added.learned_table import ReadRows, Rows, feeds_turns
from posenc.checkpoints.kinds.kind import Change, Kind, Stack, shadow
from posenc.checkpoints.kinds.rotary.module import at_coordinates, compare_tables, rounding
from posenc.encoding.base import Encoding
from posenc.encodings.rotations import Rotations


@dataclass
class RotaryBuffer(Kind):
    """A buffer [rows, 2 P] of sines and cosines: in every layer, as GPT-J and CodeGen have it, or one for all of them.

    tensor  what the module calls it
    size    its shape where a checkpoint holds it
    """

    tensor: str
    size: tuple[int, ...]

    words = "a buffer of sines and cosines"
    takes = (Rotations,)
    usual = "rotary"
    door = "turn"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["RotaryBuffer"]:
        for item in stack.pieces("table", "fixed") if stack.turns else ():
            if feeds_turns(stack.node, item) and item.values is not None and item.values.dim() == 2:
                path, _, name = item.path.rpartition(".")
                yield cls(stack, path, name, tuple(item.values.shape) if item.kind == "table" else ())

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module = model.get_submodule(self.path)
        encoding, table = self.one(encodings), getattr(module, self.tensor)
        sin, cos = table.float().chunk(2, -1)
        ids = torch.arange(len(table), device=table.device)[None]
        rounded = (0.0, rounding(table))
        compare_tables(self.path, encoding, (cos[None], sin[None]), ids[..., None], horizon, same=same, rounded=rounded)
        rows = RotaryRows(table, 0, 0, encoding, horizon)
        return [shadow(module, self.tensor, GatheredRows(rows, module, self.tensor))]


class RotaryRows(Rows):
    """Rows of sines and cosines [rows, 2 P], as an encoding that rotates makes them, at any position."""

    def read(self, ids: Tensor) -> Tensor:
        encoding: Any = self.encoding
        table = encoding.table(at_coordinates(ids.reshape(1, -1, 1), self.horizon), self.weight.dtype, ids.device)
        cos, sin = table[:, 0, 0].unbind(0)
        return torch.cat((sin, cos), -1).view(*ids.shape, -1)


class GatheredRows(ReadRows):
    """The same where attention repeats the table for each sequence of a batch and gathers from that."""

    def repeat(self, *times: int) -> "GatheredRows":
        """The same rows for each sequence."""
        return self

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function is torch.gather and len(args) == 3 and args[1] == 1:
            return args[0].of(args[2][..., 0])
        return super().__torch_function__(function, types, args, kwargs)
