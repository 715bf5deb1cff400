"""Parse specs to syntax trees without evaluation, and list the code files that they name.

A spec is an expression in Python's grammar, except that paths need no quotes: path/to/mine.py:Mine(option=3). A path
with one of `+ ( ) ,` needs them, `"some (other) folder/mine.py:Mine"(option=3)`, and so does, within parentheses, a
path that begins like an option: `rerope('step=3/mine.py:Mine')`.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from posenc import foreign
from posenc.foreign import CannotRead, code, quote
from posenc.foreign.values import LETTERS

PIECE = re.compile(r""""[^"]*"|'[^']*'|[+(),]|[^+(),"']+|.""", re.DOTALL)
OPTION = re.compile(r"\s*[A-Za-z_]\w*\s*=", re.ASCII)


def tree_of(
    spec: str, noun: str = "spec", remedy: str = "", trusted_files: Collection[str | Path] | None = None
) -> ast.expr:
    """Return the syntax tree of a spec.

    noun, remedy   its name and the remedy in errors
    trusted_files  the files whose code may run, for a spec that was read from a run or a config: those that the user
                   names besides, usually none; None for a spec that the user wrote

    Raises CannotRead for invalid syntax, more than 20,000 letters, numbers of more than 40 digits, more than 100 levels
    of nesting, and a class path whose file is not trusted.
    """
    tree = foreign.expression(quote_paths(spec), noun, remedy)
    if trusted_files is not None:
        for name in class_paths_in(tree):
            code.check_trusted(name, trusted_files)
    return tree


def quote_paths(spec: str) -> str:
    """Return the spec with quotes around every path/to/file.py:Class, which makes it a Python expression.

    >>> quote_paths("rotary(schedule=mine.py:Mine(factor=2))")
    "rotary(schedule='mine.py:Mine'(factor=2))"
    """
    cut, previous = [], ""
    for piece in pieces(spec):
        option = OPTION.match(piece) if previous in ("(", ",") else None
        start = option.end() if option else 0
        name = piece[start:].strip()
        if code.is_class_path(name) and name[0] not in "\"'":
            piece = piece[:start] + piece[start:].replace(name, repr(name))
        cut.append(piece)
        previous = piece
    return "".join(cut)


def path_literal(name: str) -> str:
    """Return path/to/file.py:Class as a spec must write it, with quotes if it needs them."""
    return name if quote_paths(f"({name})") == f"({name!r})" else repr(name)


def pieces(spec: str) -> list[str]:
    """Return the spec cut into quoted texts, the signs `+ ( ) ,`, and the text between."""
    if len(spec) > LETTERS:
        raise CannotRead(f"{quote(spec)} is longer than {LETTERS:,} letters, the most that a spec may have")
    return PIECE.findall(spec)


def split(specs: str) -> list[str]:
    """Return the specs of a comma-separated list; commas within parentheses and quotes do not count.

    >>> split("rotary(base=500, partial=0.5), alibi")
    ['rotary(base=500, partial=0.5)', 'alibi']
    """
    parts, depth = [""], 0
    for piece in pieces(specs):
        depth += (piece == "(") - (piece == ")")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def code_files(*specs: str) -> list[str]:
    """Return the users' files that specs name, as written there, without an import.

    >>> code_files("path/to/mine.py:Mine(option=3) + rotary(schedule=other.py:Other(factor=2))")
    ['path/to/mine.py', 'other.py']
    """
    return list(dict.fromkeys(code.file_of(name) for spec in specs for name in class_paths_in(tree_of(spec))))


def class_paths_in(tree: ast.expr) -> Iterator[str]:
    """Yield every path/to/file.py:Class of a tree, also those of specs within its strings."""
    # The tree and not the text, since Python has several ways to write a string.
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if code.is_class_path(node.value):
                yield node.value
                continue
            try:
                subtree = tree_of(node.value)
            except CannotRead:
                # A string that is no spec names no file.
                continue
            yield from class_paths_in(subtree)


def name_of(tree: ast.expr) -> str:
    """Return the name in a node, a word or path/to/file.py:Class; empty for another node."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str) and code.is_class_path(tree.value):
        return tree.value
    return tree.id if isinstance(tree, ast.Name) else ""
