"""Rotary by a buffer of sines and cosines in every layer, as GPT-J and CodeGen have it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.kinds.added.learned_table import ComputedTable, Rows, feeds_turns
from posenc.checkpoints.kinds.kind import Kind, LayerStack, Undo, shadow
from posenc.checkpoints.kinds.rotary.module import at_coordinates, cast_error, compare_tables
from posenc.encoding.base import Encoding
from posenc.encodings.rotations import Rotations


@dataclass
class RotaryBuffer(Kind):
    """A buffer [rows, 2 P] of sines and cosines. Every layer has one, as in GPT-J and CodeGen, or all layers share one.

    tensor  its name in the module
    size    its shape if checkpoints have it
    """

    tensor: str
    size: tuple[int, ...]

    description = "a buffer of sines and cosines"
    takes = (Rotations,)
    default_spec = "rotary"
    door = "turn"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["RotaryBuffer"]:
        for item in stack.pieces("table", "fixed") if stack.turns else ():
            if feeds_turns(stack.node, item) and item.values is not None and item.values.dim() == 2:
                path, _, name = item.path.rpartition(".")
                yield cls(stack, path, name, tuple(item.values.shape) if item.kind == "table" else ())

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        module = model.get_submodule(self.path)
        encoding, table = self.single_encoding(encodings), getattr(module, self.tensor)
        sin, cos = table.float().chunk(2, -1)
        ids = torch.arange(len(table), device=table.device)[None]
        errors = (0.0, cast_error(table))
        compare_tables(self.path, encoding, (cos[None], sin[None]), ids[..., None], horizon, exact=exact, errors=errors)
        rows = RotaryRows(table, 0, 0, encoding, horizon)
        return [shadow(module, self.tensor, GatheredTable(rows, module, self.tensor))]


class RotaryRows(Rows):
    """Rows of sines and cosines [rows, 2 P], computed by a rotary encoding at any position."""

    def read(self, ids: Tensor) -> Tensor:
        encoding: Any = self.encoding
        table = encoding.table(at_coordinates(ids.reshape(1, -1, 1), self.horizon), self.weight.dtype, ids.device)
        cos, sin = table[:, 0, 0].unbind(0)
        return torch.cat((sin, cos), -1).view(*ids.shape, -1)


class GatheredTable(ComputedTable):
    """The same for attention that repeats the table for each sequence of a batch and gathers from it."""

    def repeat(self, *times: int) -> "GatheredTable":
        """Return the same rows for each sequence."""
        return self

    @classmethod
    def __torch_function__(cls, function: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function is torch.gather and len(args) == 3 and args[1] == 1:
            return args[0].lookup(args[2][..., 0])
        return super().__torch_function__(function, types, args, kwargs)
