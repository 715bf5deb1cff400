"""A lesson's text in its cells: what a terminal shows of it, its solutions, and a Jupyter notebook."""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.foreign import CannotRead
from posenc.lessons._formulas import unicode

FRONT_MATTER = re.compile(r"\A---\n.*?^---\n+", re.MULTILINE | re.DOTALL)
CODE_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)\n```$", re.MULTILINE | re.DOTALL)
SOLUTION = re.compile(r"<details><summary>Solution</summary>\n\n```python\n(.*?)```\n\n</details>\n+", re.DOTALL)
FORMULA = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)
SYMBOL = re.compile(r"\$([^$\n]+)\$")
MAGIC = re.compile(r"^(\s*)(?:[%!?].*|.*\?\s*)$")
PICTURE = "[picture]\n"
"""What stands in front of the output of a cell that draws."""
NO_PYTHON = re.compile(r"\s*%%(?!time|timeit|capture|prun|writefile\b.*\.py\s)")
"""The first line of a cell that IPython hands to something else than Python."""


@dataclass(frozen=True)
class Cell:
    """What a notebook shows in one piece.

    kind    "markdown", or "code" for what is run
    source  its lines
    """

    kind: str
    source: str


def cells(text: str) -> Iterator[Cell]:
    """The cells of a MyST notebook, in their order.

    >>> list(cells("One.\\n\\n```{code-cell}\\n1 + 1\\n```\\n"))
    [Cell(kind='markdown', source='One.'), Cell(kind='code', source='1 + 1')]
    """
    # Between words stands code, because the pattern keeps what it finds.
    for place, source in enumerate(CODE_CELL.split(FRONT_MATTER.sub("", text))):
        if source.strip():
            yield Cell("code" if place % 2 else "markdown", source.strip())


def readable(text: str, outputs: Sequence[str], shows: str) -> str:
    """A lesson as Markdown for a terminal: without solutions, formulas in Unicode, and below code what it prints.

    outputs  of each code cell, with PICTURE in front where it draws
    shows    the command that shows pictures

    >>> print(readable("A $x_i$:\\n\\n$$\\ny_i = 2\\n$$\\n", (), ""))
    A `xᵢ`:
    <BLANKLINE>
    ```
    yᵢ = 2
    ```
    """
    words, printed = [], iter(outputs)
    for cell in cells(SOLUTION.sub("", text)):
        if cell.kind == "code":
            words.append(f"```python\n{cell.source}\n```")
            output = next(printed)
            if lines := output.removeprefix(PICTURE).strip("\n"):
                words.append(f"```\n{lines}\n```")
            if output.startswith(PICTURE):
                words.append(f"*A picture, which a terminal cannot show: `{shows}`*")
        else:
            source = FORMULA.sub(lambda found: f"```\n{unicode(found[1])}\n```", cell.source)
            words.append(SYMBOL.sub(lambda found: f"`{unicode(found[1])}`", source))
    return "\n\n".join(words)


def solutions(text: str) -> str:
    """The code of all solutions, as one file of answers."""
    return "\n\n".join(code.strip() + "\n" for code in SOLUTION.findall(text))


def notebook(text: str, place: int) -> str:
    """A lesson as a Jupyter notebook (nbformat 4.5), not run yet, with a cell for answers and one that checks them."""
    file, made = f"lesson_{place}.py", []
    text = SOLUTION.sub("", text).replace("mine.py", file)
    answers = Cell("code", f"%%writefile {file}\n# Answer here, run this cell, then the next.\n")
    for number, cell in enumerate([*cells(text), answers, Cell("code", f"!posenc lesson {place} --check {file}")]):
        run = {"execution_count": None, "outputs": []} if cell.kind == "code" else {}
        source = cell.source.splitlines(keepends=True)
        made.append({"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}, "source": source, **run})
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def code_of(notebook: bytes, file: str | Path) -> str:
    """The Python of a Jupyter notebook: its code cells one behind another, without what is IPython's alone.

    Raises CannotRead for what is no notebook.
    """
    try:
        cells = [cell["source"] for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
        return "\n\n".join(python("".join(cell)) for cell in cells)
    except (ValueError, LookupError, TypeError, RecursionError):
        remedy = "save it again in Jupyter, or write the answers into a .py file"
        raise CannotRead("it is no Jupyter notebook", file=file, remedy=remedy) from None


def python(cell: str) -> str:
    """The Python of a code cell, where lines of IPython's commands do nothing."""
    if NO_PYTHON.match(cell):
        return ""
    lines = cell.splitlines()
    for _ in lines:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # A line of Python may begin with % too, within brackets: only those are left out that are none.
            at = (error.lineno or 1) - 1
            lines[at : at + 1] = [MAGIC.sub(r"\1pass", line) for line in lines[at : at + 1]]
    return "\n".join(lines)
