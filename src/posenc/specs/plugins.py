"""Plug-ins: encodings, schedules, coordinate maps and tasks of installed packages, named by entry points.

A package that says in its pyproject.toml

    [project.entry-points."posenc.encodings"]
    slow_fade = "posenc_slow_fade:SlowFade"

adds the name `slow_fade` to specs; the other groups do the same for schedules, coordinate maps and tasks. posenc looks
for plug-ins only when a spec has a name that posenc lacks, and runs the code of a plug-in only when a spec names it.
A plug-in cannot replace a name of posenc.
"""

import functools
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from posenc.foreign import quote
from posenc.foreign.text import error_text

T = TypeVar("T")

GROUPS = {
    "posenc.encodings": "encoding",
    "posenc.schedules": "schedule",
    "posenc.coordinate_maps": "coordinate map",
    "posenc.tasks": "task",
}
"""The groups of entry points, named as the folders that they add to -> the name of one object, for errors."""


@dataclass(frozen=True)
class Plugin:
    """A name that an installed package adds to a group."""

    name: str
    """Its name in specs."""
    package: str
    """The package that defines it, with its version."""
    points: tuple[importlib.metadata.EntryPoint, ...]
    """The entry point of its class; several if packages claim the same name."""
    problem: str = ""
    """Why it cannot be used, as far as is known without running its code."""

    def load(self, kind: type[T], word: str, public: str) -> type[T]:
        """Import and return the class, a subclass of `kind`.

        word, public  names of such a class and of its base in errors: "encoding", "posenc.Encoding"

        Raises ValueError, which names the package, for any error of it.
        """
        if self.problem:
            raise ValueError(self.problem)
        (point,) = self.points
        try:
            cls = point.load()
            if isinstance(cls, type) and issubclass(cls, kind):
                cls.spec_name = self.name
                return cls
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ValueError(
                f"the {word} {quote(self.name)} of the package {quote(self.package)} cannot be imported: "
                f"{error_text(error)}; mend or uninstall that package"
            ) from error
        raise ValueError(
            f"the {word} {quote(self.name)} of the package {quote(self.package)} must be a subclass of {public}; "
            f"{quote(point.value)} is a {type(cls).__name__}"
        )


@functools.cache
def plugins_in(group: str) -> Mapping[str, Plugin]:
    """Return the plug-ins of a group by their names in specs, sorted, without running their code."""
    points: dict[str, dict[tuple[str, str], importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=group):
        # A distribution that is twice on the path has the same entry point twice.
        points.setdefault(point.name, {}).setdefault((package_of(point), point.value), point)
    return MappingProxyType({name: plugin_of(name, tuple(points[name].values())) for name in sorted(points)})


def plugin_of(name: str, points: tuple[importlib.metadata.EntryPoint, ...]) -> Plugin:
    packages = " and ".join(sorted({package_of(point) for point in points}))
    problem = ""
    if not name.isidentifier():
        problem = (
            f"the package {quote(packages)} names a plug-in {quote(name)}, which no spec can say; a name is made of "
            f"letters, digits and _"
        )
    elif not all(point.pattern.match(point.value) for point in points):
        problem = (
            f"the package {quote(packages)} says that its plug-in {quote(name)} is {quote(points[0].value)}, which "
            f"is no module:Class; mend or uninstall that package"
        )
    elif len(points) > 1:
        problem = f"{quote(name)} is the name of two plug-ins, of {packages}; uninstall one of them"
    return Plugin(name, packages, points, problem)


def package_of(point: importlib.metadata.EntryPoint) -> str:
    distribution = point.dist
    return f"{distribution.name} {distribution.version}" if distribution else "unknown"


def plugins_for(home: str) -> Mapping[str, Plugin]:
    """Return the plug-ins of a folder of posenc; none for a folder that takes none."""
    group = f"posenc.{Path(home).name}"
    return plugins_in(group) if group in GROUPS else MappingProxyType({})
