"""Encodings, schedules, coordinate maps and tasks of other packages: named by the entry points of what is installed.

A package that says in its pyproject.toml

    [project.entry-points."posenc.encodings"]
    slow_fade = "posenc_slow_fade:SlowFade"

adds the name `slow_fade` to specs; the other groups do the same for what they are called after. Nothing is looked for
before a name is asked for that posenc does not have, and no code of a plug-in is run before its own name is asked for.
A name that posenc has is never a plug-in's.
"""

import functools
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from posenc.foreign import quoted
from posenc.foreign.text import told

T = TypeVar("T")

GROUPS = {
    "posenc.encodings": "encoding",
    "posenc.schedules": "schedule",
    "posenc.coordinate_maps": "coordinate map",
    "posenc.tasks": "task",
}
"""The groups of entry points that are read, called as the folders that they add to -> what one of a group is called."""


@dataclass(frozen=True)
class Plugin:
    """What an installed package adds to the names of a group."""

    name: str
    """Its name in specs."""
    package: str
    """The package that brings it, with its version."""
    points: tuple[importlib.metadata.EntryPoint, ...]
    """Where its class is: one entry point, and more where packages disagree."""
    problem: str = ""
    """Why it cannot be used, as far as that is known before its code is run."""

    def load(self, kind: type[T], word: str, public: str) -> type[T]:
        """The class, imported now: a subclass of `kind`.

        word, public  what one of that kind is called in errors, and how a package calls their base: "posenc.Encoding"

        Raises ValueError, which names the package, for whatever is wrong with it.
        """
        if self.problem:
            raise ValueError(self.problem)
        (point,) = self.points
        try:
            found = point.load()
            if isinstance(found, type) and issubclass(found, kind):
                found.spec_name = self.name
                return found
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ValueError(
                f"the {word} {quoted(self.name)} of the package {quoted(self.package)} cannot be imported: "
                f"{told(error)}; mend or uninstall that package"
            ) from error
        raise ValueError(
            f"the {word} {quoted(self.name)} of the package {quoted(self.package)} must be a subclass of {public}; "
            f"{quoted(point.value)} is a {type(found).__name__}"
        )


@functools.cache
def plugins_in(group: str) -> Mapping[str, Plugin]:
    """The plug-ins of a group by their names in specs, in the order of the alphabet; no code of theirs is run."""
    points: dict[str, dict[tuple[str, str], importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=group):
        # One distribution that lies twice on the path says the same twice.
        points.setdefault(point.name, {}).setdefault((package_of(point), point.value), point)
    return MappingProxyType({name: plugin_of(name, tuple(points[name].values())) for name in sorted(points)})


def plugin_of(name: str, points: tuple[importlib.metadata.EntryPoint, ...]) -> Plugin:
    packages = " and ".join(sorted({package_of(point) for point in points}))
    problem = ""
    if not name.isidentifier():
        problem = (
            f"the package {quoted(packages)} names a plug-in {quoted(name)}, which no spec can say; a name is made of "
            f"letters, digits and _"
        )
    elif not all(point.pattern.match(point.value) for point in points):
        problem = (
            f"the package {quoted(packages)} says that its plug-in {quoted(name)} is {quoted(points[0].value)}, which "
            f"is no module:Class; mend or uninstall that package"
        )
    elif len(points) > 1:
        problem = f"{quoted(name)} is the name of two plug-ins, of {packages}; uninstall one of them"
    return Plugin(name, packages, points, problem)


def package_of(point: importlib.metadata.EntryPoint) -> str:
    found = point.dist
    return f"{found.name} {found.version}" if found else "unknown"


def plugins_for(home: str) -> Mapping[str, Plugin]:
    """The plug-ins that add names to a folder of posenc: none, where it takes none."""
    group = f"posenc.{Path(home).name}"
    return plugins_in(group) if group in GROUPS else MappingProxyType({})
