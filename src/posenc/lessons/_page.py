"""Runs a lesson's cells, and renders its page."""

import ast
import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posenc.lessons._cells import FORMULA, SOLUTION, SYMBOL, NotebookCell, cells

TEMPLATE = Path(__file__).with_name("lesson.html.jinja")


@dataclass(frozen=True)
class Output:
    """The printed text of a cell with its value, and its pictures as PNG files."""

    text: str
    pictures: tuple[bytes, ...]


def run(lesson: Sequence[NotebookCell]) -> Iterator[Output]:
    """Run the code cells of a lesson in order, as a notebook does, without a display."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("agg")
    stdout = io.StringIO()
    names: dict[str, Any] = {"__name__": "posenc_lesson", "print": partial(print, file=stdout)}
    for place, cell in enumerate(lesson):
        if cell.kind == "code":
            tree, file = ast.parse(cell.source), f"cell {place}"
            value = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, file, "exec"), names)
            if isinstance(value, ast.Expr):
                result = eval(compile(ast.Expression(value.value), file, "eval"), names)
                if result is not None and not cell.source.endswith(";"):
                    print(repr(result), file=stdout)
            yield Output(stdout.getvalue(), tuple(map(picture, map(pyplot.figure, pyplot.get_fignums()))))
            stdout.seek(0), stdout.truncate()
            pyplot.close("all")


def picture(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    return buffer.getvalue()


def render_lesson(text: str, title: str, place: int) -> str:
    """Return a lesson as one HTML page with its text, formulas, printed output and pictures."""
    from latex2mathml.converter import convert
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    from posenc.lab.views import page

    markdown = MarkdownIt("commonmark").enable("table")
    parts, lesson = [], list(cells(SOLUTION.sub("", text)))
    outputs = run(lesson)
    for cell in lesson:
        if cell.kind == "code":
            output = next(outputs)
            pictures = [base64.b64encode(data).decode() for data in output.pictures]
            parts.append({"code": cell.source, "output": output.text, "pictures": pictures})
        else:
            words = FORMULA.sub(lambda match: convert(match[1], display="block"), cell.source)
            words = SYMBOL.sub(lambda match: convert(match[1]), words)
            parts.append({"words": Markup(markdown.render(words))})
    return page.template(TEMPLATE).render(title=title, place=place, parts=parts)
