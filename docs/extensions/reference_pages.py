"""The reference: a page for each public room, generated from its docstrings during the build.

The pages are written to docs/reference, and not committed.
"""

import importlib
import inspect
from pathlib import Path
from typing import Any

from catalogue_pages import write
from sphinx.application import Sphinx

import posenc
from posenc.hand_outs import TARGETS
from posenc.testing import PROMISES

ROOMS = {
    "posenc": "Positions, attention and models; encodings have [pages of their own](../encodings/index.md).",
    "posenc.tokens.masks": "Imported as `from posenc import masks`.",
    "posenc.schedules": "Each of them: [schedules](../encodings/schedules.md).",
    "posenc.coordinate_maps": "Each of them: [coordinate maps](../encodings/coordinate-maps.md).",
    "posenc.lab": "Its tasks: [tasks](../encodings/tasks.md). What it writes: [results](../guides/results.md).",
    "posenc.testing": "How to hold your own encoding to them: [add an encoding](../guides/add-an-encoding.md).",
    "posenc.checkpoints": "In use: [read](../guides/read-a-checkpoint.md), [run](../guides/run-a-checkpoint.md), "
    "[convert](../guides/convert-a-checkpoint.md), [extend](../guides/extend-a-context.md), "
    "[measure an extension](../guides/measure-an-extension.md).",
    "posenc.parallel": "In use: [clusters](../guides/clusters.md), [long sequences](../guides/long-sequences.md).",
    "posenc.hand_outs": "In use: [hand an encoding to other kernels](../guides/hand-out.md).",
    "posenc.export": "In use: [export](../guides/export.md).",
}
"""The rooms, with links to their guides."""

LAZY = {
    "posenc": list(posenc.HOMES),
    "posenc.lab": ["load", "figures"],
    "posenc.hand_outs": ["Target", *TARGETS.class_names],
}
"""Public names of the rooms that import them on first use."""


def public(room: str) -> list[str]:
    """Return the public names of a room."""
    module = importlib.import_module(room)
    if room in LAZY:
        return LAZY[room]
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, thing in vars(module).items() if belongs(name, thing, room)]
    return sorted(set(names) - {promise.__name__ for promise in PROMISES})


def belongs(name: str, thing: Any, room: str) -> bool:
    """Return whether a name is public in a module without `__all__`."""
    home = getattr(thing, "__module__", "") or ""
    return not name.startswith("_") and callable(thing) and home.startswith((room, "posenc.verdicts"))


def autodoc_lines(room: str, name: str) -> list[str]:
    """Return the autodoc directive of a public name."""
    thing = getattr(importlib.import_module(room), name)
    if inspect.ismodule(thing):
        return [f".. automodule:: {thing.__name__}", "   :members:", "   :imported-members:", ""]
    if inspect.isclass(thing):
        return [f".. autoclass:: {room}.{name}", "   :members:", ""]
    return [f".. autofunction:: {room}.{name}" if callable(thing) else f".. autodata:: {room}.{name}", ""]


def page(room: str) -> str:
    names = public(room)
    lines = [f"# {room}", "", "```{eval-rst}", f".. automodule:: {room}", "   :no-members:", "```", "", ROOMS[room], ""]
    for name in names:
        lines += [f"## {name}", "", "```{eval-rst}", *autodoc_lines(room, name), "```", ""]
    if room == "posenc.testing":
        lines += ["## Promises", "", "| promise | what it tests |", "|---|---|"]
        lines += [f"| `{promise.__name__}` | {summary(promise)} |" for promise in PROMISES]
    return "\n".join([*lines, ""])


def summary(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def make(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    for room in ROOMS:
        write(folder / f"{room}.md", page(room))
    head = ["# Reference", "", "The public names, a page for each room, made from the code.", ""]
    rows = [f"| [{room}]({room}.md) | {summary(importlib.import_module(room))} |" for room in ROOMS]
    tree = ["```{toctree}", ":hidden:", "", *ROOMS, "```", ""]
    write(folder / "index.md", "\n".join([*head, *tree, "| room | what is in it |", "|---|---|", *rows, ""]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
