"""Learned tables of positions among the tensors of a checkpoint, and the config that asks for more of their rows."""

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from posenc.catalogue import build
from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.models.skeleton import skeleton
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.encoding.base import parts_of
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.learned_grid import LearnedGrid

LENGTH = re.compile(
    r"position_embeddings$|positions$|n_ctx$|seq_len|seq_length|sequence_length|context_length|max_length"
)
"""What configs call the numbers of positions; which of them a table follows is seen when the new config is read."""


@dataclass(frozen=True)
class Table:
    """A learned table of positions.

    name    of the tensor [..., first + cells, dim]
    part    where the stack that reads it stands in the config
    cells   positions on each axis of the input: (512,), or (37, 37) for images
    first   rows before position 0: those of padding, or of a class token
    """

    name: str
    part: str
    cells: tuple[int, ...]
    first: int


def cells_of(part: Part) -> tuple[int, ...] | None:
    """The positions on each axis of what a part learned and adds to its embeddings; None where that is nothing."""
    if part.embed == "none":
        return None
    with torch.device("meta"):
        for one in parts_of(build(part.embed, part.shape)):
            if isinstance(one, LearnedGrid):
                return one.cells
            if isinstance(one, Learned):
                return (one.max_len,)
    return None


def tables_of(reading: Reading, shapes: Mapping[str, Sequence[int]]) -> list[Table]:
    """The learned tables that a reading tells of, under the names that they have among tensors of these shapes.

    Two names are of one tensor where they end alike: a model of another class has another one before its modules.
    """
    found = []
    for part in reading.parts:
        if (cells := cells_of(part)) is None:
            continue
        for told, size in part.tables.items():
            fitting = [name for name, shape in shapes.items() if tuple(shape) == tuple(size)]
            first = math.prod(size[:-1]) - math.prod(cells)
            found += [Table(name, part.name, cells, first) for name in called(told, fitting)]
    return list(dict.fromkeys(found))


def called(told: str, names: Iterable[str]) -> list[str]:
    """What the tensor of a name is called among others: the names that end most like it."""
    alike = {name: ends_alike(name, told) for name in names}
    most = max(alike.values(), default=0)
    return [name for name, count in alike.items() if 0 < most == count]


def ends_alike(name: str, other: str) -> int:
    """How many steps two paths share at their ends, or 0 where that does not tell a module: "weight" is in all."""
    steps = list(zip(reversed(name.split(".")), reversed(other.split(".")), strict=False))
    count = next((i for i, (one, two) in enumerate(steps) if one != two), len(steps))
    return 0 if count == 1 and steps[0][0] == "weight" else count


def asking_for(config: Mapping[str, Any], tables: Sequence[Table], cells: tuple[int, ...]) -> dict[str, Any]:
    """A config that asks for tables with so many positions on each axis, as its own modules read it.

    Raises ValueError where no key of it does that.
    """
    wanted = copy.deepcopy(dict(config))
    for part, table in {table.part: table for table in tables}.items():
        # An encoder and a decoder may share keys, so what was said for one is not said again for the other.
        before, within = place_in(config, part), place_in(wanted, part)
        for key, value in keys_for(before, table, cells):
            within[key] = value
    for part in huggingface.read(wanted).parts:
        if part.name in {table.part for table in tables} and cells_of(part) != cells:
            raise ValueError(
                f"no key of this config was found that says how long its table is: asked for "
                f"{' x '.join(map(str, cells))} positions, {part.name or 'the model'} is read to have "
                f"{' x '.join(map(str, cells_of(part) or (0,)))}; nothing was written"
            )
    return wanted


def keys_for(place: Mapping[str, Any], table: Table, cells: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """The keys that say how large a table is, and what they say of one with so many positions."""
    if len(cells) == 1:
        for key, value in place.items():
            if LENGTH.search(key) and type(value) is int and value in (table.cells[0], table.cells[0] + table.first):
                yield key, value + cells[0] - table.cells[0]
    elif place.get("patch_size"):
        patch = place["patch_size"]
        sides = patch if isinstance(patch, (list, tuple)) else [patch] * len(cells)
        image = [count * side for count, side in zip(cells, sides, strict=True)]
        yield "image_size", image[0] if len(set(image)) == 1 else image


def place_in(config: Mapping[str, Any], name: str) -> Any:
    """The dictionary that speaks of a part, as far as there are any within: older files are flat."""
    for step in filter(None, name.split(".")):
        config = config[step] if isinstance(config.get(step), dict) else config
    return config


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The tensors that are of another shape in the model of the one config than in that of the other.

    Raises ValueError where transformers cannot build the other model.
    """
    shapes = []
    for config in (before, after):
        try:
            shapes.append(
                {name: tensor.shape for name, tensor in skeleton(huggingface.filled(config)).state_dict().items()}
            )
        except CannotRead as error:
            raise ValueError(f"{error}; nothing was written. A square grid may do") from error
    return [name for name, shape in shapes[0].items() if shapes[1].get(name, shape) != shape]
