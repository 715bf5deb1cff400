"""The names that specs may use, read from the files that hold them: a misspelt one is told before any is imported."""

import ast
import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from posenc.foreign import CannotRead, code, near, quoted
from posenc.specs import syntax
from posenc.specs.plugins import plugins_for
from posenc.specs.words import CLASSES

ENCODINGS = str(Path(__file__).parents[1] / "encodings")
TASKS = str(Path(__file__).parents[1] / "lab" / "tasks")

FEW = 8
"""So many names stand in a message; of more it says what lists them."""


def check(spec: str) -> None:
    """Raises ValueError for a spec that names an encoding which there is not, as the catalogue does.

    What else may be wrong with a spec is for the catalogue to say.
    """
    with suppress(CannotRead):
        for name in (name for part in syntax.split(spec) for name in asked(syntax.tree_of(part))):
            if not code.is_own(name) and not knows(name, ENCODINGS):
                raise ValueError(unknown(name, "encoding", ENCODINGS))


def asked(tree: ast.expr) -> Iterator[str]:
    """The names that stand where a spec has encodings."""
    if isinstance(tree, ast.BinOp):
        yield from asked(tree.left)
        yield from asked(tree.right)
    elif isinstance(tree, ast.Call) and syntax.name_of(tree.func) == "on":
        for inside in tree.args[:1]:
            yield from asked(inside)
    elif name := syntax.name_of(tree.func if isinstance(tree, ast.Call) else tree):
        yield name


def knows(name: str, home: str) -> bool:
    """Whether a file of a folder, or a plug-in, has a name."""
    return name in files_in(home) or name in plugins_for(home)


def unknown(name: str, word: str, home: str) -> str:
    """What is said of a name that nothing has: which is near, and which there are or what lists them."""
    more = plugins_for(home)
    known, called = (*files_in(home), *more), {**{one: one for one in more}, **called_in(home)}
    ours = CLASSES.get(name, [name])[0] if home == ENCODINGS else name
    if ours != name and ours.lower() not in {one.replace("_", "") for one in called}:
        # It is here, and no encoding.
        called = {ours: f"posenc.{ours}"}
    if len(known) > FEW:
        return f"no {word} named {quoted(name)}{near(ours, called, listed(word))}"
    return f"no {word} named {quoted(name)}; there are: {', '.join(known)}{near(ours, called)}"


def listed(word: str) -> str:
    """The command that lists all of a kind, such as every coordinate map."""
    return f"posenc list {word.replace(' ', '_')}s"


@functools.cache
def files_in(home: str) -> Mapping[str, Path]:
    """The files of a folder, and of those in it, by name; one that begins with _ is what the others share."""
    files = {path.stem: path for path in Path(home).rglob("*.py") if not path.stem.startswith("_")}
    return MappingProxyType(dict(sorted(files.items())))


@functools.cache
def called_in(home: str) -> Mapping[str, str]:
    """Every name, and every other name that a class says it is `also_called` by -> the name of the file."""
    found = {}
    for name, file in files_in(home).items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "also_called":
                found.update(dict.fromkeys(ast.literal_eval(node.value), name))
        found[name] = name
    return MappingProxyType(found)
