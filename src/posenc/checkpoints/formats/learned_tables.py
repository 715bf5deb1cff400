"""Learned tables of positions among the tensors of a checkpoint, and the config of a larger one."""

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
"""Names of lengths in configs; reading the new config shows which of them a table follows."""


@dataclass(frozen=True)
class PositionTable:
    """A learned table of positions.

    name    of the tensor [..., first + cells, dim]
    part    path of its stack in the config
    cells   positions on each axis of the input: (512,), or (37, 37) for images
    first   rows before position 0: of padding, or of a class token
    """

    name: str
    part: str
    cells: tuple[int, ...]
    first: int


def part_cells(part: Part) -> tuple[int, ...] | None:
    """Return the positions on each axis of a part's learned table; None without one."""
    if part.embed == "none":
        return None
    with torch.device("meta"):
        for encoding in parts_of(build(part.embed, part.shape)):
            if isinstance(encoding, LearnedGrid):
                return encoding.cells
            if isinstance(encoding, Learned):
                return (encoding.max_len,)
    return None


def position_tables(reading: Reading, shapes: Mapping[str, Sequence[int]]) -> list[PositionTable]:
    """Return the learned tables of a reading, by their names among tensors of these shapes.

    Names of one tensor have the same end: another class of model has another prefix.
    """
    tables = []
    for part in reading.parts:
        if (cells := part_cells(part)) is None:
            continue
        for path, size in part.tables.items():
            fitting = [name for name, shape in shapes.items() if tuple(shape) == tuple(size)]
            first = math.prod(size[:-1]) - math.prod(cells)
            tables += [PositionTable(name, part.name, cells, first) for name in stored_names(path, fitting)]
    return list(dict.fromkeys(tables))


def stored_names(path: str, names: Iterable[str]) -> list[str]:
    """Return the names that share most of their end with a path."""
    steps = {name: common_steps(name, path) for name in names}
    longest = max(steps.values(), default=0)
    return [name for name, count in steps.items() if 0 < longest == count]


def common_steps(name: str, second_name: str) -> int:
    """Return the number of steps that two paths share at their ends; 0 if it is only "weight"."""
    steps = list(zip(reversed(name.split(".")), reversed(second_name.split(".")), strict=False))
    count = next((i for i, (step, second_step) in enumerate(steps) if step != second_step), len(steps))
    return 0 if count == 1 and steps[0][0] == "weight" else count


def resize_config(config: Mapping[str, Any], tables: Sequence[PositionTable], cells: tuple[int, ...]) -> dict[str, Any]:
    """Return a config for tables with `cells` positions on each axis, as its own modules read it.

    Raises ValueError if no key of it has that effect.
    """
    new_config = copy.deepcopy(dict(config))
    for part, table in {table.part: table for table in tables}.items():
        # An encoder and a decoder may share keys, so the old values come from the old config.
        old_place, new_place = place_in(config, part), place_in(new_config, part)
        for key, value in keys_for(old_place, table, cells):
            new_place[key] = value
    for part in huggingface.read(new_config).parts:
        if part.name in {table.part for table in tables} and part_cells(part) != cells:
            raise ValueError(
                f"no key of this config was found that says how long its table is: asked for "
                f"{' x '.join(map(str, cells))} positions, {part.name or 'the model'} is read to have "
                f"{' x '.join(map(str, part_cells(part) or (0,)))}; nothing was written"
            )
    return new_config


def keys_for(place: Mapping[str, Any], table: PositionTable, cells: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a table's size, with their values for `cells` positions."""
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
    """Return the dictionary of a part, or the last one on the way: older files are flat."""
    for step in filter(None, name.split(".")):
        config = config[step] if isinstance(config.get(step), dict) else config
    return config


def resized_tensors(old_config: Mapping[str, Any], new_config: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors whose shapes differ in the models of two configs.

    Raises ValueError if transformers cannot build the new model.
    """
    shapes = []
    for config in (old_config, new_config):
        try:
            shapes.append(
                {name: tensor.shape for name, tensor in skeleton(huggingface.build_config(config)).state_dict().items()}
            )
        except CannotRead as error:
            raise ValueError(f"{error}; nothing was written. A square grid may do") from error
    return [name for name, shape in shapes[0].items() if shapes[1].get(name, shape) != shape]
