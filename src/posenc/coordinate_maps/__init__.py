"""Coordinate maps: functions that change the positions of tokens before any encoding reads them.

A map changes the coordinates of every document; padding, order, document and declared horizon of a token stay. So every
encoding can be trained on random, shifted, skipped or task-specific positions. Maps read data: like a tokenizer they
run before the model, outside a compiled graph. To decode step by step, map the whole sequence once and take the rows of
each step.

    at = Randomised(longest=2048)(Positions.count(40))
    model(ids, positions=at)

Random numbers are drawn for each row, and for each document in it, and never from the global random state. Without a
generator they come from the map's seed, the same at every call; a training run passes one generator to all calls, so
that every step draws anew. A batch that shares one row of positions shares its draw, unless token ids of more rows are
given.

Each map is one file, whose name is its name in specs, as in `randomised(longest=2048)`. Name a map of your own by its
path: `path/to/mine.py:Mine(longest=2048)`.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from posenc.coordinate_maps._coordinate_map import CoordinateMap
from posenc.specs.registry import Registry

__all__ = ["COORDINATE_MAPS", "CoordinateMap", "map_of"]

COORDINATE_MAPS = Registry(__name__, CoordinateMap, "posenc.coordinate_maps.CoordinateMap", "interpolated(factor=4)")
"""The maps of posenc, by their names in specs; each is imported at its first use."""


def map_of(value: CoordinateMap | str, trusted_files: Collection[str | Path] | None = None) -> CoordinateMap:
    """Return a coordinate map, which the caller gives as an object or as a spec.

    trusted_files  the files whose code a spec from a file may run; None for a spec that the caller wrote

    Raises ValueError for any other value and for unknown options; CannotRead for code of other files.

    >>> map_of("interpolated(factor=4)")
    interpolated(factor=4)
    """
    return COORDINATE_MAPS.resolve(value, trusted_files)


def __getattr__(name: str) -> Any:
    """Import and return the map of a class name."""
    return COORDINATE_MAPS.by_class_name(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *COORDINATE_MAPS.class_names])
