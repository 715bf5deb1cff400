"""Tables with a row for each position, added to the embeddings of tokens: learned, or sines that are kept in one."""

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
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, Stack, shadow, swap
from posenc.checkpoints.kinds.rotary.module import at_coordinates, rounding
from posenc.checkpoints.models.added import BESIDES
from posenc.checkpoints.models.found import Found
from posenc.checkpoints.models.nodes import Node
from posenc.checkpoints.vocabulary.ledger import is_list
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding.base import Encoding, Shape
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.learned_grid import LearnedGrid
from posenc.encodings.added.sinusoidal import Sinusoidal

FACTS = {"shape", "dtype", "device", "size", "dim", "ndim", "numel", "requires_grad", "grad", "is_cuda", "layout"}
"""What code asks of a table that it does not read."""

OF_A_LAYER = re.compile(r"\.\d+\.(?:.*\.)?\w*att(?:n|ention)\w*\.")
"""Paths within the attention of a layer, where nothing is added to the embeddings."""

SINUSOIDS = tuple(itertools.product(("interleaved", "concatenated", "cosines_first"), (False, True)))


@dataclass
class LearnedTable(Kind):
    """A table that was seen to be looked up by position, or to be added as it stands.

    spec    "learned", or the sines that its rows are
    row     the row of the first token: those before it are for padding
    origin  the row of position 0: that of the first token, or 0 where sines are counted from there
    tensor  what the module calls it
    size    the shape of the whole table
    """

    spec: str
    row: int
    origin: int
    tensor: str
    size: tuple[int, ...]

    words = "a table of positions"
    takes = (Learned, LearnedGrid, Sinusoidal)
    usual = "learned"
    door = "embed"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["LearnedTable"]:
        for item in stack.pieces("table", "fixed"):
            seen, values = stack.node.seen, item.values
            row = seen.rows.get(item.path, seen.added.get(item.path, 0 if item.path in seen.patches else None))
            if values is None or feeds_turns(stack.node, item) or not is_table(values) or OF_A_LAYER.search(item.path):
                continue
            if row is None and seen.failure:
                # Where a model could not be run its sines are known by their numbers, behind what rows there may be.
                row = next((n for n in range(3) if as_sines(values.flatten(0, -2), n)[0] != "learned"), None)
            if row is None:
                continue
            if not seen.rows.get(item.path) and values.shape[-1] == stack.shape.dim and grid_of(stack, item):
                # Patches of an image.
                continue
            of_heads = item.path not in seen.rows and tuple(values.shape) == (stack.shape.heads, stack.shape.head_dim)
            if item.path in stack.node.claimed or of_heads:
                # Compared with distances, or a vector that each head adds to its queries.
                continue
            path, _, name = item.path.rpartition(".")
            spec, origin = as_sines(values.flatten(0, -2), row)
            if spec == "learned" and item.kind == "fixed":
                # Computed numbers, by a rule that the catalogue does not have.
                continue
            yield cls(stack, path, spec, row, origin, name, tuple(values.shape))

    @property
    def besides(self) -> str:
        """What the spec does not say."""
        counted = "" if self.origin == self.row else f"; the first token stands at {self.row}"
        before = f"the first {self.row} rows of {self.where} are no positions{counted}" if self.row else ""
        seen, path = self.stack.node.seen, self.where
        times = seen.scaled.get(self.path, 1.0)
        scaled = "" if math.isclose(times, 1.0, rel_tol=1e-4) else f"{self.path} multiplies its rows by {times:.6g}"
        whole = path in seen.patches and path not in {**seen.added, **seen.rows}
        resampled = f"{path} is resampled by the model's own code before it is added" if whole else ""
        return "; ".join(sentence for sentence in (before, scaled, resampled) if sentence)

    @property
    def first(self) -> int | None:
        """The id of position 0, as the module is given it: in RoBERTa and its kin it comes after that of padding.

        None where the module is given no ids, and counts behind rows of padding in its own way.
        """
        return self.stack.node.seen.ids.get(self.path, None if self.row else 0)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        table, encoding = getattr(model.get_submodule(self.path), self.tensor), self.one(encodings)
        rows = Rows(table.flatten(0, -2), self.row, self.origin, encoding, horizon)
        if same:
            self.compare(rows, encoding)
        return [put(self, model, rows)]

    def limit(self, model: nn.Module) -> Learned | None:
        """A learned table of as many positions, which raises past them; None where what fills this one has no end."""
        rows: Rows = vars(module := model.get_submodule(self.path)).get(self.tensor, module).rows
        table = torch.empty(math.prod(self.size[:-1]) - self.origin, 0, device="meta")
        return Borrowed(table, "error") if getattr(rows.encoding, "overrun", "") == "error" else None

    @torch.no_grad()
    def compare(self, rows: "Rows", encoding: Encoding) -> None:
        """Raises Differs where the rows of positions are not those of the encoding."""
        table: Tensor = rows.weight
        ids = torch.arange(self.row, len(table), device=table.device)
        theirs, ours = table[self.row :].float(), rows.read(ids).float()
        # Sines of far positions are off by parts of the distance, in the float32 that they were made in.
        allowed = 1e-6 + rounding(table) + (1e-6 * (ids + 1.0) if isinstance(encoding, Sinusoidal) else 0.0)
        off = (theirs - ours).abs().amax(1)
        if not bool((off <= allowed).all()):
            place = int((off - allowed).argmax())
            raise Differs(
                f"{self.path} and {encoding} differ: the row of position {place} is off by {float(off[place]):.3g}"
            )


def is_table(values: Tensor) -> bool:
    """Whether there is one row for each position, on whatever axis."""
    return values.dim() > 1 and math.prod(values.shape) == values.shape[-1] * max(values.shape[:-1])


def feeds_turns(node: Node, item: Found) -> bool:
    """Whether a table holds the sines of rotary code, as those of GPT-J and RoFormer, and nothing is added."""
    turns = node.seen.turns
    return bool(turns) and item.values is not None and item.values.shape[-1] == turns[0].matrices.shape[-1]


def grid_of(stack: Stack, item: Found) -> tuple[tuple[int, ...], int] | None:
    """The grid of patches that fits a table, and the rows before it: by its shape, by keys, or as it was added."""
    table, keys = item.values, stack.node.keys
    assert table is not None
    count = math.prod(table.shape[:-1])
    if not is_table(table):
        cells = tuple(n for n in table.shape[:-1] if n > 1)
        return (cells, 0) if len(cells) == 2 else None
    for key in ("num_position_embeddings", "num_patches"):
        if keys.peek(key) == count and math.isqrt(count) ** 2 == count:
            keys.say(key, "the grid of patches, resampled to each image")
            return (math.isqrt(count), math.isqrt(count)), 0
    for key in (key for key in keys.given if key.endswith("_height")):
        other = f"{key.removesuffix('height')}width"
        height, width = keys.peek(key), keys.peek(other)
        if type(height) is int and type(width) is int and height * width == count:
            keys.say(key, "the grid of patches, resampled to each image")
            keys.say(other, "the grid of patches")
            return (height, width), 0
    # The table is of the images that were seen first, where others came later.
    of = "pretrain_image_size" if keys.has("pretrain_image_size") else "image_size"
    sizes = [keys.peek(key) for key in (of, "patch_size")]
    image, patch = ((n, n) if isinstance(n, int) else n for n in sizes)
    if all(is_list(n) and len(n) == 2 and all(type(one) is int and one > 0 for one in n) for n in (image, patch)):
        grid = image[0] // patch[0], image[1] // patch[1]
        if 0 <= count - grid[0] * grid[1] < BESIDES:
            for key in (of, "image_size", "patch_size"):
                keys.say(key, "the grid of patches")
            return grid, count - grid[0] * grid[1]
    cells = stack.node.seen.patches.get(item.path)
    return (cells, count - math.prod(cells)) if cells else None


def as_sines(values: Tensor, first: int) -> tuple[str, int]:
    """The spec of a table's rows, and the row of position 0: sinusoidal where they are sines, else learned."""
    count, wide = values.shape
    # Of a model that was cast to half precision the sines are rounded, and nothing that is learned comes as near.
    rounded = values.bfloat16().to(values.dtype).equal(values) if not values.is_meta else False
    for origin in dict.fromkeys((first, 0)) if wide > 2 and count > first and not values.is_meta else ():
        for layout, endpoint in SINUSOIDS:
            spec = spec_of("sinusoidal", layout=None if layout == "interleaved" else layout, endpoint=endpoint or None)
            try:
                encoding: Any = build(spec, Shape(wide, 1, wide, count))
            except ValueError:
                continue
            expected = encoding(torch.zeros(1, count - origin, wide))[0, first - origin :]
            if torch.allclose(values[first:].float(), expected, atol=1e-2 if rounded else 1e-3):
                return spec, origin
    return "learned", first


def put(table: Any, model: nn.Module, rows: "Rows") -> Change:
    """Let rows take the place of a table."""
    module = model.get_submodule(table.path)
    if type(module) is nn.Embedding and table.path in table.stack.node.seen.entered:
        return swap(model, table.path, EmbeddedRows(rows, module))
    # It counts positions in its own way, or resamples its rows, and reads them as tensors are read.
    return shadow(module, table.tensor, ReadRows(rows, module, table.tensor))


class Borrowed(Learned):
    """A learned encoding whose table [rows, dim] is part of somebody else's parameter."""

    def __init__(self, table: Tensor, overrun: str) -> None:
        Encoding.__init__(self)
        self.__dict__["table"], self.overrun = table, overrun
        self.max_len, self.dim = table.shape


@dataclass(frozen=True)
class Rows:
    """The rows of a model's table of positions, as an encoding makes them.

    weight    the model's own table [rows, dim], whose rows before the first position are read as they are
    first     the row of the first token
    origin    the row of position 0
    encoding  learned, which reads the model's rows and says what happens past them; or what computes rows
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
        """The rows [..., dim] of ids [...]."""
        places = (ids - self.origin).clamp(min=0) if self.origin else ids
        at = at_coordinates(places.reshape(1, -1, 1), self.horizon)
        if isinstance(self.encoding, Sinusoidal):
            nothing = torch.zeros(1, ids.numel(), self.weight.shape[1], device=ids.device, dtype=self.weight.dtype)
            rows = self.encoding.embed(nothing, at).view(*ids.shape, -1)
        else:
            overrun = getattr(self.encoding, "overrun", "error")
            rows = Borrowed(self.weight[self.origin :], overrun).vectors(at).view(*ids.shape, -1)
        if self.first:
            before = F.embedding(ids.clamp(0, self.first - 1), self.weight)
            rows = torch.where((ids < self.first)[..., None], before, rows)
        return rows


class EmbeddedRows(nn.Module):
    """In the place of an embedding of positions, which holds the model's table under the name that the model has."""

    def __init__(self, rows: Rows, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight, self.rows = rows.weight, rows
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.padding_idx = embedding.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        # A parameter may have become another object since.
        return replace(self.rows, weight=self.weight).read(ids)

    def extra_repr(self) -> str:
        return f"{len(self.weight) - self.rows.first} rows of {self.weight.shape[1]}, {self.rows.encoding}"


class ReadRows:
    """In the place of a table that a module's own code reads by ids, in slices or whole: its rows are then computed.

    rows    how, from a table [rows, dim]
    module  holds the parameter or buffer `name`, the same numbers in any shape [..., dim]
    """

    def __init__(self, rows: Rows, module: nn.Module, name: str) -> None:
        # A view of a parameter cannot be copied.
        self.rows, self.name = replace(rows, weight=None), name
        self.held: dict[str, Any] = module._parameters if name in module._parameters else module._buffers

    @property
    def table(self) -> Tensor:
        """The model's own."""
        return self.held[self.name]

    @property
    def whole(self) -> Tensor:
        """All rows, in the shape of the model's table."""
        table = self.table
        return self.of(torch.arange(table.numel() // table.shape[-1], device=table.device)).view_as(table)

    def of(self, ids: Tensor) -> Tensor:
        """The rows [..., dim] of ids [...]."""
        # A cast of the model makes another tensor.
        return replace(self.rows, weight=self.table.flatten(0, -2)).read(ids)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("rows", "name", "held"):
            raise AttributeError(name)
        return getattr(self.table if name in FACTS else self.whole, name)

    def __getitem__(self, at: Any) -> Tensor:
        ids, rest = (at[0], at[1:]) if isinstance(at, tuple) and at else (at, ())
        by_row = self.table.dim() == 2 and isinstance(ids, (slice, Tensor))
        if not by_row or any(one != slice(None) for one in rest):
            return self.whole[at]
        if isinstance(ids, slice):
            ids = torch.arange(len(self.table), device=self.table.device)[ids]
        return self.of(ids)

    def __len__(self) -> int:
        return len(self.table)

    def index_select(self, dim: int, ids: Tensor) -> Tensor:
        """The rows of ids."""
        return self.of(ids)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function is F.embedding and len(args) > 1 and isinstance(args[1], cls):
            return args[1].of(args[0])
        whole = functools.partial(tree_map, lambda x: x.whole if isinstance(x, cls) else x)
        return function(*whole(tuple(args)), **whole(kwargs or {}))
