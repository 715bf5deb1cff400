"""Read the names that specs may use from the files, and report a misspelt one before any import."""

import ast
import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from posenc.foreign import CannotRead, code, quote, suggestion
from posenc.specs import syntax
from posenc.specs.plugins import plugins_for
from posenc.specs.words import CLASSES_BY_WORD

ENCODINGS = str(Path(__file__).parents[1] / "encodings")
TASKS = str(Path(__file__).parents[1] / "lab" / "tasks")

MAX_LISTED = 8
"""The most names in a message; for more it gives the command that lists them."""


def check(spec: str) -> None:
    """Raise ValueError, as the catalogue does, for a spec with an unknown encoding.

    The catalogue reports any other fault.
    """
    with suppress(CannotRead):
        for name in (name for part in syntax.split(spec) for name in encoding_names(syntax.tree_of(part))):
            if not code.is_class_path(name) and not knows(name, ENCODINGS):
                raise ValueError(unknown_message(name, "encoding", ENCODINGS))


def encoding_names(tree: ast.expr) -> Iterator[str]:
    """Yield the names of a spec that stand in the place of an encoding."""
    if isinstance(tree, ast.BinOp):
        yield from encoding_names(tree.left)
        yield from encoding_names(tree.right)
    elif isinstance(tree, ast.Call) and syntax.name_of(tree.func) == "on":
        for argument in tree.args[:1]:
            yield from encoding_names(argument)
    elif name := syntax.name_of(tree.func if isinstance(tree, ast.Call) else tree):
        yield name


def knows(name: str, home: str) -> bool:
    """Whether a name belongs to a file of a folder, or to a plug-in."""
    return name in files_by_name(home) or name in plugins_for(home)


def unknown_message(name: str, word: str, home: str) -> str:
    """Return the error message for an unknown name. It has the nearest name, and all names or the command for them."""
    plugins = plugins_for(home)
    names, meanings = (*files_by_name(home), *plugins), {**{plugin: plugin for plugin in plugins}, **aliases_in(home)}
    meaning = CLASSES_BY_WORD.get(name, [name])[0] if home == ENCODINGS else name
    if meaning != name and meaning.lower() not in {plugin.replace("_", "") for plugin in meanings}:
        # posenc has it, but not as an encoding.
        meanings = {meaning: f"posenc.{meaning}"}
    if len(names) > MAX_LISTED:
        return f"no {word} named {quote(name)}{suggestion(meaning, meanings, list_command(word))}"
    return f"no {word} named {quote(name)}; there are: {', '.join(names)}{suggestion(meaning, meanings)}"


def list_command(word: str) -> str:
    """Return the command that lists all objects of a kind, such as coordinate maps."""
    return f"posenc list {word.replace(' ', '_')}s"


@functools.cache
def files_by_name(home: str) -> Mapping[str, Path]:
    """Return the files of a folder and its subfolders by name. Those that begin with _ (shared code) are left out."""
    files = {path.stem: path for path in Path(home).rglob("*.py") if not path.stem.startswith("_")}
    return MappingProxyType(dict(sorted(files.items())))


@functools.cache
def aliases_in(home: str) -> Mapping[str, str]:
    """Return every name, and every `also_called` of its class -> the name of the file."""
    aliases = {}
    for name, file in files_by_name(home).items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "also_called":
                aliases.update(dict.fromkeys(ast.literal_eval(node.value), name))
        aliases[name] = name
    return MappingProxyType(aliases)
