"""Rotary by a buffer of sines and cosines in every layer, as GPT-J and CodeGen have it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.checkpoints.kinds.kind import Change, Kind, Stack, shadow
from posenc.checkpoints.kinds.learned_table import feeds_turns
from posenc.checkpoints.kinds.rotary_module import at_coordinates, compare_tables, rounding
from posenc.encoding import Encoding
from posenc.rotations import Rotations


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

    def specs(self) -> list[str]:
        return [spec for spec, _ in self.stack.turning or ()]

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module = model.get_submodule(self.path)
        encoding, table = self.one(encodings), getattr(module, self.tensor)
        sin, cos = table.float().chunk(2, -1)
        ids = torch.arange(len(table), device=table.device)[None]
        rounded = (0.0, rounding(table))
        compare_tables(self.path, encoding, (cos[None], sin[None]), ids[..., None], horizon, same=same, rounded=rounded)
        held = module._buffers if self.tensor in module._buffers else module._parameters
        return [shadow(module, self.tensor, RotaryRows(encoding, self.tensor, held, horizon))]


class RotaryRows:
    """In the place of a buffer [rows, 2 P] of sines and cosines: rows are computed when they are read, at any position.

    It is what attention does with that buffer: index it with position ids, or repeat and gather from it.
    """

    def __init__(self, encoding: Rotations, buffer: str, buffers: Mapping[str, Any], horizon: int | None) -> None:
        self.encoding, self.buffer, self.buffers, self.horizon = encoding, buffer, buffers, horizon

    @property
    def device(self) -> torch.device:
        """Where the model has put the buffer."""
        return self.buffers[self.buffer].device

    @property
    def shape(self) -> torch.Size:
        return self.buffers[self.buffer].shape

    def repeat(self, *times: int) -> "RotaryRows":
        """The same rows for each sequence of a batch."""
        return self

    def __getitem__(self, position_ids: Tensor) -> Tensor:
        at = at_coordinates(position_ids[..., None], self.horizon)
        cos, sin = self.encoding.table(at, self.buffers[self.buffer].dtype, position_ids.device)[:, :, 0].unbind(0)
        return torch.cat((sin, cos), -1)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Tensor:
        if function is torch.gather and len(args) == 3 and args[1] == 1:
            return args[0][args[2][..., 0]]
        if function is F.embedding:
            return args[1][args[0].view(1, -1)].view(*args[0].shape, -1)
        raise TypeError(
            f"rotary rows are read by position ids or gathered from, and this model calls {function.__name__} on them; "
            f"detach it"
        )
