"""Coordinate maps: where tokens stand, changed before any encoding sees them.

A map moves the coordinates of every document and leaves alone who is padding, what comes before what, which document a
token belongs to, and the declared horizon. So every encoding can be trained on random, shifted, skipped or
task-given positions without knowing of it. Maps look at data; like a tokenizer they run before the model and outside a
compiled graph. A sequence that is decoded step by step is mapped once and whole, and its steps take their rows.

    at = Randomised(longest=2048)(Positions.count(40))
    model(ids, positions=at)

What is random is drawn for each row, and for each document in it, and never from the global random state. Without a
generator the draw is that of the map's seed, the same at every call; a training run hands one generator to all its
calls, so that every step is another draw. Positions of one row that a whole batch shares are one draw that it shares,
unless token ids of more rows are given.

One file each, and the file's name is the name in specs, as in `randomised(longest=2048)`. One of your own is written by
its path: `path/to/mine.py:Mine(longest=2048)`.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from posenc.coordinate_maps._coordinate_map import CoordinateMap
from posenc.specs.registry import Registry

__all__ = ["COORDINATE_MAPS", "CoordinateMap", "map_of"]

COORDINATE_MAPS = Registry(__name__, CoordinateMap, "posenc.coordinate_maps.CoordinateMap", "interpolated(factor=4)")
"""The maps that ship, by their names in specs; each is imported when it is first asked for."""


def map_of(given: CoordinateMap | str, own: Collection[str | Path] | None = None) -> CoordinateMap:
    """The coordinate map that a caller gave: one of these, or as it is written in a spec.

    own  the files whose code may be run, for a spec that was read from elsewhere; None for one that a person gave

    Raises ValueError for what is neither, and for options that it does not have; CannotRead for code of other files.

    >>> map_of("interpolated(factor=4)")
    interpolated(factor=4)
    """
    return COORDINATE_MAPS.given(given, own)


def __getattr__(name: str) -> Any:
    """A map by its class name, imported now."""
    return COORDINATE_MAPS.by_class_name(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *COORDINATE_MAPS.class_names])
