"""The cells of a lesson's text: for a terminal, as solutions, and as a Jupyter notebook."""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.foreign import CannotRead
from posenc.lessons._formulas import unicode_formula

FRONT_MATTER = re.compile(r"\A---\n.*?^---\n+", re.MULTILINE | re.DOTALL)
CODE_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)\n```$", re.MULTILINE | re.DOTALL)
SOLUTION = re.compile(r"<details><summary>Solution</summary>\n\n```python\n(.*?)```\n\n</details>\n+", re.DOTALL)
FORMULA = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.MULTILINE | re.DOTALL)
SYMBOL = re.compile(r"\$([^$\n]+)\$")
MAGIC = re.compile(r"^(\s*)(?:[%!?].*|.*\?\s*)$")
PICTURE = "[picture]\n"
"""The prefix of the output of a cell that draws."""
NO_PYTHON = re.compile(r"\s*%%(?!time|timeit|capture|prun|writefile\b.*\.py\s)")
"""Matches the first line of a cell in another language than Python."""


@dataclass(frozen=True)
class NotebookCell:
    """A cell of a notebook: its kind, "markdown" or "code", and its source."""

    kind: str
    source: str


def cells(text: str) -> Iterator[NotebookCell]:
    """Yield the cells of a MyST notebook in order.

    >>> list(cells("One.\\n\\n```{code-cell}\\n1 + 1\\n```\\n"))
    [NotebookCell(kind='markdown', source='One.'), NotebookCell(kind='code', source='1 + 1')]
    """
    # re.split keeps the captured code, so text and code alternate.
    for place, source in enumerate(CODE_CELL.split(FRONT_MATTER.sub("", text))):
        if source.strip():
            yield NotebookCell("code" if place % 2 else "markdown", source.strip())


def readable(text: str, outputs: Sequence[str], shows: str) -> str:
    """Return a lesson as Markdown for a terminal: without solutions, with Unicode formulas and printed output.

    outputs  the output of each code cell, with the prefix PICTURE if it draws
    shows    the command that shows pictures

    >>> print(readable("A $x_i$:\\n\\n$$\\ny_i = 2\\n$$\\n", (), ""))
    A `xᵢ`:
    <BLANKLINE>
    ```
    yᵢ = 2
    ```
    """
    words, output_texts = [], iter(outputs)
    for cell in cells(SOLUTION.sub("", text)):
        if cell.kind == "code":
            words.append(f"```python\n{cell.source}\n```")
            output = next(output_texts)
            if lines := output.removeprefix(PICTURE).strip("\n"):
                words.append(f"```\n{lines}\n```")
            if output.startswith(PICTURE):
                words.append(f"*A picture, which a terminal cannot show: `{shows}`*")
        else:
            source = FORMULA.sub(lambda match: f"```\n{unicode_formula(match[1])}\n```", cell.source)
            words.append(SYMBOL.sub(lambda match: f"`{unicode_formula(match[1])}`", source))
    return "\n\n".join(words)


def solutions(text: str) -> str:
    """Return the code of all solutions as one Python file."""
    return "\n\n".join(code.strip() + "\n" for code in SOLUTION.findall(text))


def notebook(text: str, place: int) -> str:
    """Return a lesson as a Jupyter notebook (nbformat 4.5). Its last cells are for answers, and check them."""
    file, json_cells = f"lesson_{place}.py", []
    text = SOLUTION.sub("", text).replace("mine.py", file)
    answers = NotebookCell("code", f"%%writefile {file}\n# Answer here, run this cell, then the next.\n")
    for number, cell in enumerate(
        [*cells(text), answers, NotebookCell("code", f"!posenc lesson {place} --check {file}")]
    ):
        run = {"execution_count": None, "outputs": []} if cell.kind == "code" else {}
        source = cell.source.splitlines(keepends=True)
        json_cells.append({"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}, "source": source, **run})
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": json_cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def code_of(notebook: bytes, file: str | Path) -> str:
    """Return the code cells of a Jupyter notebook as Python, without IPython commands.

    Raises CannotRead if the file is not a notebook.
    """
    try:
        cells = [cell["source"] for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
        return "\n\n".join(python("".join(cell)) for cell in cells)
    except (ValueError, LookupError, TypeError, RecursionError):
        remedy = "save it again in Jupyter, or write the answers into a .py file"
        raise CannotRead("it is no Jupyter notebook", file=file, remedy=remedy) from None


def python(cell: str) -> str:
    """Return a code cell as Python, with IPython commands replaced by `pass`."""
    if NO_PYTHON.match(cell):
        return ""
    lines = cell.splitlines()
    for _ in lines:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # Python lines within brackets may begin with % too, so only lines with a syntax error are replaced.
            at = (error.lineno or 1) - 1
            lines[at : at + 1] = [MAGIC.sub(r"\1pass", line) for line in lines[at : at + 1]]
    return "\n".join(lines)
