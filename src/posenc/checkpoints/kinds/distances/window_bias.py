"""Buffers that say which row of a table each pair of patches in a window reads (Swin)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, Stack, refill
from posenc.checkpoints.kinds.rotary.module import rounding
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding.base import Encoding, Shape
from posenc.encodings.distance_biases.grid_bias import GridBias
from posenc.encodings.distance_biases.log_grid_bias import LogGridBias
from posenc.tokens.positions import Positions


@dataclass
class WindowBias(Kind):
    """A module that reads a table of distances for each pair of patches in a window; the table stays the model's own.

    spec    the catalogue's entry
    index   the name of the buffer that says which row each pair of patches reads
    scaled  the name of the buffer of distances that a network makes the table of; "" where the table is learned
    window  patches on each axis of the window
    """

    spec: str
    index: str
    scaled: str
    window: tuple[int, int]

    words = "a bias of distances in a window"
    takes = (GridBias, LogGridBias)
    usual = "grid_bias"
    door = "bias"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["WindowBias"]:
        for item in stack.pieces("table", "fixed"):
            values = item.values
            if values is None or values.is_meta:
                continue
            rows, wide = values[..., 0].numel(), values.shape[-1]
            learned = item.kind == "table" and values.dim() == 2 and wide == stack.shape.heads
            if not learned and not (item.kind == "fixed" and values.dim() == 4 and wide == 2):
                continue
            named = [(n, b) for n, b in item.owner._buffers.items() if b is not None and not b.is_floating_point()]
            windows = ((n, window) for n, b in named if (window := window_of(b, rows)))
            index, window = next(windows, ("", (0, 0)))
            path, _, name = item.path.rpartition(".")
            spec = spec_of("grid_bias", window=window) if learned else network(item.owner, values, stack.shape)
            if index and spec:
                # Its projections may be called after position too, as the network's are.
                stack.node.claimed |= {one.path for one in stack.pieces("table") if one.path.startswith(f"{path}.")}
                stack.node.claimed |= {item.path}
                sentence = f"attention is within windows of {window[0]} x {window[1]} patches"
                stack.node.keys.say("window_size", sentence)
                stack.node.keys.say("pretrained_window_sizes", "the windows that distances are scaled by, where not 0")
                if sentence not in stack.besides:
                    stack.besides.append(sentence)
                yield cls(stack, path, spec, index, "" if learned else name, window)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module: Any = model.get_submodule(self.path)
        encoding = self.one(encodings)
        if isinstance(encoding, LogGridBias) != bool(self.scaled):
            made = "a network of distances makes" if self.scaled else "is learned, not what a network makes"
            raise ValueError(f"{self.path}: {made} its table; {encoding} cannot take its place")
        if not self.scaled and encoding.window != self.window:
            raise ValueError(f"{self.path} has a window of {self.window} patches, and {encoding} one of another size")
        if not self.scaled:
            return [refill(module, self.index, rows_of(self.window))]
        theirs, ours = getattr(module, self.scaled), encoding.scaled(distances(self.window))
        far = float((theirs.cpu().double() - ours).abs().max())
        if same and far > 1e-5 + 2 * rounding(theirs):
            raise Differs(f"{self.path} and {encoding} scale distances otherwise: by up to {far:.3g}")
        return [refill(module, self.index, rows_of(self.window)), refill(module, self.scaled, ours)]


def rows_of(window: tuple[int, int]) -> Tensor:
    """The row of the table [cells, cells] for each pair of patches in a window."""
    cells = Positions.grid(*window).coords[0].long()
    bias = GridBias(1, window=window)
    return bias.row(cells[:, None] - cells + torch.tensor(window) - 1)


def distances(window: tuple[int, int]) -> Tensor:
    """The distances in a window [2 height - 1, 2 width - 1, 2] (patches, float64)."""
    axes = [torch.arange(1 - n, n, dtype=torch.float64) for n in window]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)


def window_of(index: Tensor, rows: int) -> tuple[int, int] | None:
    """The window whose pairs of patches read a table of so many rows by an index; None where it is no such index."""
    cells = round(index.numel() ** 0.5)
    for height in range(1, cells + 1) if cells * cells == index.numel() and not index.is_meta else ():
        window = height, cells // height
        if height * window[1] == cells and (2 * height - 1) * (2 * window[1] - 1) == rows:
            if torch.equal(index.reshape(cells, cells), rows_of(window)):
                return window
    return None


def network(owner: nn.Module, scaled: Tensor, shape: Shape) -> str | None:
    """The spec of a network that makes a bias of scaled distances; None where there is none."""
    layers = next((list(child) for child in owner.children() if isinstance(child, nn.Sequential)), [])
    if [type(layer) for layer in layers] != [nn.Linear, nn.ReLU, nn.Linear] or layers[2].out_features != shape.heads:
        return None
    window = scaled.shape[1] // 2 + 1, scaled.shape[2] // 2 + 1
    # The farthest distance says in which window the network was trained.
    farthest = 8.0 ** float(scaled[0, -1, 0, 0]) - 1
    trained = round(8 * (window[0] - 1) / farthest) + 1 if farthest > 0 else 0
    if trained < 2 or layers[0].bias is None or layers[2].bias is not None:
        return None
    width = layers[0].out_features
    spec = spec_of("log_grid_bias", window=None if trained == 8 else trained, width=None if width == 512 else width)
    encoding: Any = build(spec, shape)
    return spec if torch.allclose(encoding.scaled(distances(window)).float(), scaled[0], atol=1e-5) else None
