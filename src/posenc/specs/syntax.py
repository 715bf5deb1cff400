"""How specs are written: texts that become syntax trees and are never evaluated, and the files of code that they name.

A spec is an expression of Python's grammar, but for paths: path/to/mine.py:Mine(option=3) stands as it is. A path with
one of `+ ( ) ,` stands in quotes, `"some (other) folder/mine.py:Mine"(option=3)`, and so does, within parentheses, one
that begins as an option does: `rerope('step=3/mine.py:Mine')`.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from posenc import foreign
from posenc.foreign import CannotRead, code, quoted
from posenc.foreign.values import LETTERS

PIECE = re.compile(r""""[^"]*"|'[^']*'|[+(),]|[^+(),"']+|.""", re.DOTALL)
OPTION = re.compile(r"\s*[A-Za-z_]\w*\s*=", re.ASCII)


def tree_of(spec: str, what: str = "spec", remedy: str = "", own: Collection[str | Path] | None = None) -> ast.expr:
    """The syntax tree of a spec.

    what, remedy  what it is called in errors, and what they say is to be done
    own           the files whose code may be run, for a spec that was read from elsewhere, such as a run or a config:
                  those that a person has named besides, as a rule none; None for a spec that a person gave, which names
                  its files itself

    Raises CannotRead for what is no expression, more than 20,000 letters, numbers of more than 40 digits, what is
    nested more than 100 deep, and code of a file that is not among `own`, wherever the spec names it.
    """
    tree = foreign.expression(in_quotes(spec), what, remedy)
    if own is not None:
        for name in named_in(tree):
            code.check_named(name, own)
    return tree


def in_quotes(spec: str) -> str:
    """The spec with every path/to/file.py:Class in quotes, which makes it an expression of Python's grammar.

    >>> in_quotes("rotary(schedule=mine.py:Mine(factor=2))")
    "rotary(schedule='mine.py:Mine'(factor=2))"
    """
    cut, before = [], ""
    for piece in pieces(spec):
        option = OPTION.match(piece) if before in ("(", ",") else None
        start = option.end() if option else 0
        name = piece[start:].strip()
        if code.is_own(name) and name[0] not in "\"'":
            piece = piece[:start] + piece[start:].replace(name, repr(name))
        cut.append(piece)
        before = piece
    return "".join(cut)


def written(name: str) -> str:
    """path/to/file.py:Class as a spec has to write it, so that it is read again wherever it stands."""
    return name if in_quotes(f"({name})") == f"({name!r})" else repr(name)


def pieces(spec: str) -> list[str]:
    """The spec cut into what stands in quotes, the signs between names, and the rest."""
    if len(spec) > LETTERS:
        raise CannotRead(f"{quoted(spec)} is longer than {LETTERS:,} letters, the most that a spec may have")
    return PIECE.findall(spec)


def split(specs: str) -> list[str]:
    """The specs of a list that is written with commas between; those within parentheses and quotes do not count.

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


def files_in(*specs: str) -> list[str]:
    """The files of one's own that specs name, as they are written there; nothing is imported.

    >>> files_in("path/to/mine.py:Mine(option=3) + rotary(schedule=other.py:Other(factor=2))")
    ['path/to/mine.py', 'other.py']
    """
    return list(dict.fromkeys(code.file_of(name) for spec in specs for name in named_in(tree_of(spec))))


def named_in(tree: ast.expr) -> Iterator[str]:
    """Every path/to/file.py:Class of a tree, and of the specs that its strings may be read as."""
    # The tree is asked and not the text: Python knows more than one way to write a string.
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if code.is_own(node.value):
                yield node.value
                continue
            try:
                inside = tree_of(node.value)
            except CannotRead:
                # What is no spec is never read as one.
                continue
            yield from named_in(inside)


def name_of(tree: ast.expr) -> str:
    """The name that stands there, a word or path/to/file.py:Class; or nothing."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str) and code.is_own(tree.value):
        return tree.value
    return tree.id if isinstance(tree, ast.Name) else ""
