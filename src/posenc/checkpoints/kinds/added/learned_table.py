"""Tables with a row for each position, added to the embeddings of tokens: learned, or stored sines."""

import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Kind, LayerStack, Mismatch, Undo, replace_module, shadow
from posenc.checkpoints.kinds.rotary.module import at_coordinates, cast_error
from posenc.checkpoints.models.added_tables import MAX_EXTRA_ROWS
from posenc.checkpoints.models.nodes import ConfigNode
from posenc.checkpoints.models.position_items import PositionItem
from posenc.checkpoints.vocabulary.ledger import is_list
from posenc.checkpoints.vocabulary.specs import new_spec
from posenc.encoding.base import Encoding, Shape
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.learned_grid import LearnedGrid
from posenc.encodings.added.sinusoidal import Sinusoidal

METADATA = {"shape", "dtype", "device", "size", "dim", "ndim", "numel", "requires_grad", "grad", "is_cuda", "layout"}
"""Attributes of a table that read no numbers."""

IN_ATTENTION = re.compile(r"\.\d+\.(?:.*\.)?\w*att(?:n|ention)\w*\.")
"""Paths within the attention of a layer, where nothing is added to the embeddings."""

SINUSOIDS = tuple(itertools.product(("interleaved", "concatenated", "cosines_first"), (False, True)))


@dataclass
class LearnedTable(Kind):
    """A table that the model looks up by position, or adds as a whole.

    spec    "learned", or the sines that its rows are
    row     the row of the first token: rows before it are for padding
    origin  the row of position 0: that of the first token, or 0 if sines count from there
    tensor  its name in the module
    size    the shape of the whole table
    """

    spec: str
    row: int
    origin: int
    tensor: str
    size: tuple[int, ...]

    description = "a table of positions"
    takes = (Learned, LearnedGrid, Sinusoidal)
    default_spec = "learned"
    door = "embed"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["LearnedTable"]:
        for item in stack.pieces("table", "fixed"):
            trace, values = stack.node.trace, item.values
            path = item.path
            row = trace.first_rows.get(path, trace.added_rows.get(path, 0 if path in trace.patches else None))
            if values is None or feeds_turns(stack.node, item) or not is_table(values) or IN_ATTENTION.search(path):
                continue
            if row is None and trace.failure:
                # The sines of a model that could not run are recognised by their numbers.
                row = next((n for n in range(3) if as_sines(values.flatten(0, -2), n)[0] != "learned"), None)
            if row is None:
                continue
            if not trace.first_rows.get(path) and values.shape[-1] == stack.shape.dim and patch_grid(stack, item):
                # The table is for patches of an image.
                continue
            of_heads = tuple(values.shape) == (stack.shape.heads, stack.shape.head_dim)
            if path in stack.node.claimed_paths or (of_heads and path not in trace.first_rows):
                # Such a table is compared with distances, or is a vector that each head adds to its queries.
                continue
            path, _, name = path.rpartition(".")
            spec, origin = as_sines(values.flatten(0, -2), row)
            if spec == "learned" and item.kind == "fixed":
                # Its numbers are computed by a rule that the catalogue does not have.
                continue
            yield cls(stack, path, spec, row, origin, name, tuple(values.shape))

    @property
    def remarks(self) -> str:
        """Sentences on what the spec does not cover."""
        offset = "" if self.origin == self.row else f"; the first token stands at {self.row}"
        leading_rows = f"the first {self.row} rows of {self.where} are no positions{offset}" if self.row else ""
        trace, path = self.stack.node.trace, self.where
        times = trace.scales.get(self.path, 1.0)
        factor = "" if math.isclose(times, 1.0, rel_tol=1e-4) else f"{self.path} multiplies its rows by {times:.6g}"
        whole = path in trace.patches and path not in {**trace.added_rows, **trace.first_rows}
        resampling = f"{path} is resampled by the model's own code before it is added" if whole else ""
        return "; ".join(sentence for sentence in (leading_rows, factor, resampling) if sentence)

    @property
    def first(self) -> int | None:
        """The id of position 0 in the module's input. In RoBERTa and its relatives it follows that of padding.

        None if the module takes no ids, and counts after rows of padding in its own way.
        """
        return self.stack.node.trace.first_ids.get(self.path, None if self.row else 0)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        table, encoding = getattr(model.get_submodule(self.path), self.tensor), self.single_encoding(encodings)
        rows = Rows(table.flatten(0, -2), self.row, self.origin, encoding, horizon)
        if exact:
            self.compare(rows, encoding)
        return [replace_table(self, self.tensor, model, rows)]

    def limit(self, model: nn.Module) -> Learned | None:
        """Return an equally long learned table that raises past its end; None if the encoding has no end."""
        rows: Rows = vars(module := model.get_submodule(self.path)).get(self.tensor, module).rows
        table = torch.empty(math.prod(self.size[:-1]) - self.origin, 0, device="meta")
        return SharedTable(table, "error") if getattr(rows.encoding, "overrun", "") == "error" else None

    @torch.no_grad()
    def compare(self, rows: "Rows", encoding: Encoding) -> None:
        """Raise Mismatch if the rows of positions differ from the encoding's."""
        table: Tensor = rows.weight
        ids = torch.arange(self.row, len(table), device=table.device)
        model_rows, encoding_rows = table[self.row :].float(), rows.read(ids).float()
        # In float32 the error of sines grows with the position.
        tolerance = 1e-6 + cast_error(table) + (1e-6 * (ids + 1.0) if isinstance(encoding, Sinusoidal) else 0.0)
        error = (model_rows - encoding_rows).abs().amax(1)
        if not bool((error <= tolerance).all()):
            place = int((error - tolerance).argmax())
            raise Mismatch(
                f"{self.path} and {encoding} differ: the row of position {place} is off by {float(error[place]):.3g}"
            )


def is_table(values: Tensor) -> bool:
    """Whether there is one row for each position, on any axis."""
    return values.dim() > 1 and math.prod(values.shape) == values.shape[-1] * max(values.shape[:-1])


def feeds_turns(node: ConfigNode, item: PositionItem) -> bool:
    """Whether a table has the sines of rotary code, as in GPT-J and RoFormer, and is not added."""
    turns = node.trace.turns
    return bool(turns) and item.values is not None and item.values.shape[-1] == turns[0].matrices.shape[-1]


def patch_grid(stack: LayerStack, item: PositionItem) -> tuple[tuple[int, ...], int] | None:
    """Return the grid of patches that fits a table, and the rows before it."""
    table, keys = item.values, stack.node.keys
    assert table is not None
    count = math.prod(table.shape[:-1])
    if not is_table(table):
        cells = tuple(n for n in table.shape[:-1] if n > 1)
        return (cells, 0) if len(cells) == 2 else None
    for key in ("num_position_embeddings", "num_patches"):
        if keys.peek(key) == count and math.isqrt(count) ** 2 == count:
            keys.note(key, "the grid of patches, resampled to each image")
            return (math.isqrt(count), math.isqrt(count)), 0
    for key in (key for key in keys.entries if key.endswith("_height")):
        width_key = f"{key.removesuffix('height')}width"
        height, width = keys.peek(key), keys.peek(width_key)
        if type(height) is int and type(width) is int and height * width == count:
            keys.note(key, "the grid of patches, resampled to each image")
            keys.note(width_key, "the grid of patches")
            return (height, width), 0
    # The table is for the images of pretraining.
    size_key = "pretrain_image_size" if keys.has("pretrain_image_size") else "image_size"
    sizes = [keys.peek(key) for key in (size_key, "patch_size")]
    image, patch = ((n, n) if isinstance(n, int) else n for n in sizes)
    if all(is_list(n) and len(n) == 2 and all(type(side) is int and side > 0 for side in n) for n in (image, patch)):
        grid = image[0] // patch[0], image[1] // patch[1]
        if 0 <= count - grid[0] * grid[1] < MAX_EXTRA_ROWS:
            for key in (size_key, "image_size", "patch_size"):
                keys.note(key, "the grid of patches")
            return grid, count - grid[0] * grid[1]
    cells = stack.node.trace.patches.get(item.path)
    return (cells, count - math.prod(cells)) if cells else None


def as_sines(values: Tensor, first: int) -> tuple[str, int]:
    """Return the spec of a table's rows, sinusoidal or learned, and the row of position 0."""
    count, wide = values.shape
    # Half precision rounds sines, and no learned table comes as near.
    is_half_precision = values.bfloat16().to(values.dtype).equal(values) if not values.is_meta else False
    for origin in dict.fromkeys((first, 0)) if wide > 2 and count > first and not values.is_meta else ():
        for layout, endpoint in SINUSOIDS:
            spec = new_spec("sinusoidal", layout=None if layout == "interleaved" else layout, endpoint=endpoint or None)
            try:
                encoding: Any = build(spec, Shape(wide, 1, wide, count))
            except ValueError:
                continue
            sines = encoding(torch.zeros(1, count - origin, wide))[0, first - origin :]
            if torch.allclose(values[first:].float(), sines, atol=1e-2 if is_half_precision else 1e-3):
                return spec, origin
    return "learned", first


def replace_table(kind: Kind, tensor: str, model: nn.Module, rows: "Rows") -> Undo:
    """Replace a table by computed rows."""
    module = model.get_submodule(kind.path)
    if type(module) is nn.Embedding and kind.path in kind.stack.node.trace.entered_paths:
        return replace_module(model, kind.path, ComputedEmbedding(rows, module))
    # The module counts positions itself, or resamples its rows, and reads them as a tensor.
    return shadow(module, tensor, ComputedTable(rows, module, tensor))


class SharedTable(Learned):
    """A learned encoding whose table [rows, dim] is part of the model's parameter."""

    def __init__(self, table: Tensor, overrun: str) -> None:
        Encoding.__init__(self)
        self.__dict__["table"], self.overrun = table, overrun
        self.max_len, self.dim = table.shape


@dataclass(frozen=True)
class Rows:
    """The rows of a model's table of positions, computed by an encoding.

    weight    the model's table [rows, dim]; rows before the first position are read from it
    first     the row of the first token
    origin    the row of position 0
    encoding  learned, which reads the model's rows and decides what happens past them; or one that computes rows
    horizon   the declared length of every sequence (tokens), which overrun="interpolate" needs
    """

    weight: Any
    first: int
    origin: int
    encoding: Encoding
    horizon: int | None

    def __post_init__(self) -> None:
        if getattr(self.encoding, "overrun", None) == "interpolate" and self.horizon is None:
            raise ValueError("overrun='interpolate' squeezes by each sequence's horizon; declare it with horizon=...")

    def read(self, ids: Tensor) -> Tensor:
        """Return the rows [..., dim] of ids [...]."""
        places = (ids - self.origin).clamp(min=0) if self.origin else ids
        at = at_coordinates(places.reshape(1, -1, 1), self.horizon)
        if isinstance(self.encoding, Sinusoidal):
            zeros = torch.zeros(1, ids.numel(), self.weight.shape[1], device=ids.device, dtype=self.weight.dtype)
            rows = self.encoding.embed(zeros, at).view(*ids.shape, -1)
        else:
            overrun = getattr(self.encoding, "overrun", "error")
            rows = SharedTable(self.weight[self.origin :], overrun).vectors(at).view(*ids.shape, -1)
        if self.first:
            leading_rows = F.embedding(ids.clamp(0, self.first - 1), self.weight)
            rows = torch.where((ids < self.first)[..., None], leading_rows, rows)
        return rows


class ComputedEmbedding(nn.Module):
    """Replacement of a position embedding; it has the model's table under the model's name."""

    def __init__(self, rows: Rows, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight, self.rows = rows.weight, rows
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.padding_idx = embedding.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        # The parameter may be another object by now.
        return replace(self.rows, weight=self.weight).read(ids)

    def extra_repr(self) -> str:
        return f"{len(self.weight) - self.rows.first} rows of {self.weight.shape[1]}, {self.rows.encoding}"


class ComputedTable:
    """Replacement of a table that a module reads by ids, in slices or whole; it computes its rows.

    rows    computes them, from a table [rows, dim]
    module  has the parameter or buffer `name`, the same numbers in any shape [..., dim]
    """

    def __init__(self, rows: Rows, module: nn.Module, name: str) -> None:
        # A view of a parameter cannot be deep-copied.
        self.rows, self.name = replace(rows, weight=None), name
        self.tensors: dict[str, Any] = module._parameters if name in module._parameters else module._buffers

    @property
    def table(self) -> Tensor:
        """The model's table."""
        return self.tensors[self.name]

    @property
    def whole(self) -> Tensor:
        """All rows, in the shape of the model's table."""
        table = self.table
        return self.lookup(torch.arange(table.numel() // table.shape[-1], device=table.device)).view_as(table)

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the rows [..., dim] of ids [...]."""
        # A cast of the model makes another tensor.
        return replace(self.rows, weight=self.table.flatten(0, -2)).read(ids)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("rows", "name", "tensors"):
            raise AttributeError(name)
        return getattr(self.table if name in METADATA else self.whole, name)

    def __getitem__(self, at: int | slice | Tensor | tuple[Any, ...]) -> Tensor:
        ids, rest = (at[0], at[1:]) if isinstance(at, tuple) and at else (at, ())
        by_row = self.table.dim() == 2 and isinstance(ids, (slice, Tensor))
        if not by_row or any(index != slice(None) for index in rest):
            return self.whole[at]
        if isinstance(ids, slice):
            ids = torch.arange(len(self.table), device=self.table.device)[ids]
        return self.lookup(ids)

    def __len__(self) -> int:
        return len(self.table)

    def index_select(self, dim: int, ids: Tensor) -> Tensor:
        """Return the rows of ids."""
        return self.lookup(ids)

    @classmethod
    def __torch_function__(cls, function: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function is F.embedding and len(args) > 1 and isinstance(args[1], cls):
            return args[1].lookup(args[0])
        whole = functools.partial(tree_map, lambda x: x.whole if isinstance(x, cls) else x)
        return function(*whole(tuple(args)), **whole(kwargs or {}))
