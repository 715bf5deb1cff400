"""Docstrings as they stand in the code, to pages: what is aligned there becomes lists and formulas here.

A docstring of posenc is a sentence, equations, one line for each argument with its name in front, paragraphs, and an
example. It is plain text, made to be read in a terminal.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from posenc.lab.tasks import TASKS

ARGUMENT = re.compile(r"^([a-z_][\w]*(?:, [a-z_][\w]*)*)  +(\S.*)$")
EQUATION = re.compile(r"[A-Za-z)\]_]\s(=|->|<=)\s")
PROSE = re.compile(r"(For|With|Where|In|At|By|The|An?|[A-Z][a-z]+[,:]) ")
WARNINGS = ("Where it goes wrong", "Limit", "Limits")
ENDS_A_SENTENCE = re.compile(r"[.:;!?]$")


def paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """The lines between empty ones."""
    held: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            held.append(line)
        elif held:
            yield held
            held = []


def is_arguments(paragraph: list[str]) -> bool:
    return ARGUMENT.match(paragraph[0]) is not None and all(
        ARGUMENT.match(line) or line.startswith("  ") for line in paragraph
    )


def is_equations(paragraph: list[str]) -> bool:
    first = paragraph[0]
    return EQUATION.search(first) is not None and not ENDS_A_SENTENCE.search(first) and not PROSE.match(first)


def arguments(paragraph: list[str]) -> Iterator[str]:
    """A definition list."""
    for line in paragraph:
        if found := ARGUMENT.match(line):
            yield plain(found[1])
            yield f"   {plain(found[2])}"
        else:
            yield f"   {plain(line.strip())}"


def shown(lines: list[str]) -> list[str]:
    """A docstring in the form that Sphinx reads.

    >>> print("\\n".join(shown(["Halve.", "", "y = x/2", "", "x  a number"])))
    Halve.
    <BLANKLINE>
    ::
    <BLANKLINE>
       y = x/2
    <BLANKLINE>
    x
       a number
    <BLANKLINE>
    """
    out: list[str] = []
    for paragraph in paragraphs(textwrap.dedent("\n".join(lines)).splitlines()):
        if paragraph[0].startswith(">>>"):
            out += paragraph
        elif is_arguments(paragraph):
            out += arguments(paragraph)
        elif is_equations(paragraph) or all(line.startswith("    ") for line in paragraph):
            out += ["::", "", *(f"   {line}" for line in paragraph)]
        else:
            out += [plain(line.strip()) for line in paragraph]
        out.append("")
    return out


def begins_with(paragraph: list[str], heads: tuple[str, ...]) -> bool:
    return paragraph[0].partition(": ")[0] in heads


def warning(docstring: str) -> list[str]:
    """The paragraph that says where something goes wrong, without these words; nothing where there is none.

    >>> warning("Halve.\\n\\nLimit: odd numbers\\nare halved too.\\n\\ny = x/2")
    ['Odd numbers', 'are halved too.']
    """
    for paragraph in paragraphs(docstring.splitlines()):
        if begins_with(paragraph, WARNINGS):
            _, _, rest = paragraph[0].partition(": ")
            return [rest[:1].upper() + rest[1:], *paragraph[1:]]
    return []


def plain(line: str) -> str:
    """A line whose bars, stars and last underscores mean nothing but themselves, outside of code."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def without_what_stands_above(lines: list[str]) -> list[str]:
    """A docstring of the catalogue without its idea and its warning, which have a place of their own on their page."""
    _, *rest = paragraphs(lines)
    return [line for paragraph in rest if not begins_with(paragraph, WARNINGS) for line in [*paragraph, ""]]


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "class" and (getattr(obj, "equation", "") or obj in TASKS.values()):
        lines[:] = without_what_stands_above(lines)
    lines[:] = shown(lines)


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, given: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """What a class is made with: those of the catalogue are called through one place, which takes anything."""
    if given and "<factory>" in given:
        # What is no Python is not parsed, and then shows no links.
        return given.replace("<factory>", "..."), returns
    if what != "class" or "*given" not in (given or ""):
        return None
    own = inspect.signature(obj.__init__)
    return str(own.replace(parameters=list(own.parameters.values())[1:], return_annotation=own.empty)), None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
