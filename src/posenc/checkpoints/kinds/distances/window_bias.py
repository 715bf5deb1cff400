"""Index buffers from the pairs of patches in a window to the rows of a bias table (Swin)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Kind, LayerStack, Mismatch, Undo, replace_buffer
from posenc.checkpoints.kinds.rotary.module import cast_error
from posenc.checkpoints.vocabulary.specs import new_spec
from posenc.encoding.base import Encoding, Shape
from posenc.encodings.distance_biases.grid_bias import GridBias
from posenc.encodings.distance_biases.log_grid_bias import LogGridBias
from posenc.tokens.positions import Positions


@dataclass
class WindowBias(Kind):
    """A module that reads a table of distances for each pair of patches in a window. The table stays the model's own.

    spec             the catalogue's entry
    index            name of the buffer with the row of each pair of patches
    distance_buffer  name of the buffer of distances that a network computes the table from; "" for a learned table
    window           patches on each axis of the window
    """

    spec: str
    index: str
    distance_buffer: str
    window: tuple[int, int]

    description = "a bias of distances in a window"
    takes = (GridBias, LogGridBias)
    default_spec = "grid_bias"
    door = "bias"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["WindowBias"]:
        for item in stack.pieces("table", "fixed"):
            values = item.values
            if values is None or values.is_meta:
                continue
            rows, wide = values[..., 0].numel(), values.shape[-1]
            learned = item.kind == "table" and values.dim() == 2 and wide == stack.shape.heads
            if not learned and not (item.kind == "fixed" and values.dim() == 4 and wide == 2):
                continue
            integers = [(n, b) for n, b in item.owner._buffers.items() if b is not None and not b.is_floating_point()]
            windows = ((n, window) for n, b in integers if (window := find_window(b, rows)))
            index, window = next(windows, ("", (0, 0)))
            path, _, name = item.path.rpartition(".")
            spec = new_spec("grid_bias", window=window) if learned else network_spec(item.owner, values, stack.shape)
            if index and spec:
                # Names of the network's parameters may contain "position" too.
                own_tables = (t.path for t in stack.pieces("table") if t.path.startswith(f"{path}."))
                stack.node.claimed_paths |= {item.path, *own_tables}
                sentence = f"attention is within windows of {window[0]} x {window[1]} patches"
                stack.node.keys.note("window_size", sentence)
                stack.node.keys.note("pretrained_window_sizes", "the windows that distances are scaled by, where not 0")
                if sentence not in stack.remarks:
                    stack.remarks.append(sentence)
                yield cls(stack, path, spec, index, "" if learned else name, window)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        module: Any = model.get_submodule(self.path)
        encoding = self.single_encoding(encodings)
        if isinstance(encoding, LogGridBias) != bool(self.distance_buffer):
            source = "a network of distances makes" if self.distance_buffer else "is learned, not what a network makes"
            raise ValueError(f"{self.path}: {source} its table; {encoding} cannot take its place")
        if not self.distance_buffer and encoding.window != self.window:
            raise ValueError(f"{self.path} has a window of {self.window} patches, and {encoding} one of another size")
        if not self.distance_buffer:
            return [replace_buffer(module, self.index, window_rows(self.window))]
        actual, distances = getattr(module, self.distance_buffer), encoding.log_scale(window_distances(self.window))
        error = float((actual.cpu().double() - distances).abs().max())
        if exact and error > 1e-5 + 2 * cast_error(actual):
            raise Mismatch(f"{self.path} and {encoding} scale distances otherwise: by up to {error:.3g}")
        index = replace_buffer(module, self.index, window_rows(self.window))
        return [index, replace_buffer(module, self.distance_buffer, distances)]


def window_rows(window: tuple[int, int]) -> Tensor:
    """Return the row of the table [cells, cells] for each pair of patches in a window."""
    cells = Positions.grid(*window).coords[0].long()
    bias = GridBias(1, window=window)
    return bias.row(cells[:, None] - cells + torch.tensor(window) - 1)


def window_distances(window: tuple[int, int]) -> Tensor:
    """Return the distances in a window [2 height - 1, 2 width - 1, 2] (patches, float64)."""
    axes = [torch.arange(1 - n, n, dtype=torch.float64) for n in window]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)


def find_window(index: Tensor, rows: int) -> tuple[int, int] | None:
    """Return the window (height, width) of an index into a table of `rows`; None for another tensor."""
    cells = round(index.numel() ** 0.5)
    for height in range(1, cells + 1) if cells * cells == index.numel() and not index.is_meta else ():
        window = height, cells // height
        if height * window[1] == cells and (2 * height - 1) * (2 * window[1] - 1) == rows:
            if torch.equal(index.reshape(cells, cells), window_rows(window)):
                return window
    return None


def network_spec(owner: nn.Module, table: Tensor, shape: Shape) -> str | None:
    """Return the spec of a network that computes a bias from scaled distances; None without one."""
    layers = next((list(child) for child in owner.children() if isinstance(child, nn.Sequential)), [])
    if [type(layer) for layer in layers] != [nn.Linear, nn.ReLU, nn.Linear] or layers[2].out_features != shape.heads:
        return None
    window = table.shape[1] // 2 + 1, table.shape[2] // 2 + 1
    # The farthest distance shows the window of training.
    farthest = 8.0 ** float(table[0, -1, 0, 0]) - 1
    size = round(8 * (window[0] - 1) / farthest) + 1 if farthest > 0 else 0
    if size < 2 or layers[0].bias is None or layers[2].bias is not None:
        return None
    width = layers[0].out_features
    spec = new_spec("log_grid_bias", window=None if size == 8 else size, width=None if width == 512 else width)
    encoding: Any = build(spec, shape)
    return spec if torch.allclose(encoding.log_scale(window_distances(window)).float(), table[0], atol=1e-5) else None
