"""Converts docstrings to pages: aligned text becomes lists and formulas.

A docstring of posenc is a sentence, equations, one line for each argument with its name in front, paragraphs, and an
example. It is plain text for a terminal.
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
    """Yield the lines of each paragraph."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def is_arguments(paragraph: list[str]) -> bool:
    return ARGUMENT.match(paragraph[0]) is not None and all(
        ARGUMENT.match(line) or line.startswith("  ") for line in paragraph
    )


def is_equations(paragraph: list[str]) -> bool:
    first = paragraph[0]
    return EQUATION.search(first) is not None and not ENDS_A_SENTENCE.search(first) and not PROSE.match(first)


def arguments(paragraph: list[str]) -> Iterator[str]:
    """Yield the lines of a definition list."""
    for line in paragraph:
        if match := ARGUMENT.match(line):
            yield plain(match[1])
            yield f"   {plain(match[2])}"
        else:
            yield f"   {plain(line.strip())}"


def restructured_text(lines: list[str]) -> list[str]:
    """Convert a docstring to reStructuredText.

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
    output: list[str] = []
    for paragraph in paragraphs(textwrap.dedent("\n".join(lines)).splitlines()):
        if paragraph[0].startswith(">>>"):
            output += paragraph
        elif is_arguments(paragraph):
            output += arguments(paragraph)
        elif is_equations(paragraph) or all(line.startswith("    ") for line in paragraph):
            output += ["::", "", *(f"   {line}" for line in paragraph)]
        else:
            output += [plain(line.strip()) for line in paragraph]
        output.append("")
    return output


def begins_with(paragraph: list[str], heads: tuple[str, ...]) -> bool:
    return paragraph[0].partition(": ")[0] in heads


def warning(docstring: str) -> list[str]:
    """Return the paragraph on where something goes wrong, without its heading, or an empty list.

    >>> warning("Halve.\\n\\nLimit: odd numbers\\nare halved too.\\n\\ny = x/2")
    ['Odd numbers', 'are halved too.']
    """
    for paragraph in paragraphs(docstring.splitlines()):
        if begins_with(paragraph, WARNINGS):
            _, _, rest = paragraph[0].partition(": ")
            return [rest[:1].upper() + rest[1:], *paragraph[1:]]
    return []


def plain(line: str) -> str:
    """Escape bars, stars and trailing underscores of a line, outside of code."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def without_what_stands_above(lines: list[str]) -> list[str]:
    """Return a docstring of the catalogue without its idea and its warning, which the page shows elsewhere."""
    _, *rest = paragraphs(lines)
    return [line for paragraph in rest if not begins_with(paragraph, WARNINGS) for line in [*paragraph, ""]]


def process(app: Sphinx, kind: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if kind == "class" and (getattr(obj, "equation", "") or obj in TASKS.values()):
        lines[:] = without_what_stands_above(lines)
    lines[:] = restructured_text(lines)


def signature(
    app: Sphinx, kind: str, name: str, obj: Any, options: Any, text: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Return the signature of a class's __init__; classes of the catalogue share a __new__ that takes anything."""
    if text and "<factory>" in text:
        # Text that is not Python would be shown without links.
        return text.replace("<factory>", "..."), returns
    if kind != "class" or "*args" not in (text or ""):
        return None
    call = inspect.signature(obj.__init__)
    return str(call.replace(parameters=list(call.parameters.values())[1:], return_annotation=call.empty)), None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
