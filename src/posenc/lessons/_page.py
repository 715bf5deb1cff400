"""A lesson that has run: what its cells print and draw, and the page of it."""

import ast
import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posenc.lessons._cells import FORMULA, SOLUTION, SYMBOL, Cell, cells

TEMPLATE = Path(__file__).with_name("lesson.html.jinja")


@dataclass(frozen=True)
class Output:
    """What a cell prints, its value behind, and the pictures that it draws, as PNG files."""

    text: str
    pictures: tuple[bytes, ...]


def run(lesson: Sequence[Cell]) -> Iterator[Output]:
    """Run the code cells of a lesson one behind another, as a notebook does; nothing is shown on a screen."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("agg")
    printed = io.StringIO()
    names: dict[str, Any] = {"__name__": "posenc_lesson", "print": partial(print, file=printed)}
    for place, cell in enumerate(lesson):
        if cell.kind == "code":
            tree, file = ast.parse(cell.source), f"cell {place}"
            value = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, file, "exec"), names)
            if isinstance(value, ast.Expr):
                given = eval(compile(ast.Expression(value.value), file, "eval"), names)
                if given is not None and not cell.source.endswith(";"):
                    print(repr(given), file=printed)
            yield Output(printed.getvalue(), tuple(map(picture, map(pyplot.figure, pyplot.get_fignums()))))
            printed.seek(0), printed.truncate()
            pyplot.close("all")


def picture(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120, bbox_inches="tight")
    return out.getvalue()


def page(text: str, title: str, place: int) -> str:
    """The page of a lesson, whole in one file of HTML: its words, its formulas, and what its code prints and draws."""
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
            words = FORMULA.sub(lambda found: convert(found[1], display="block"), cell.source)
            words = SYMBOL.sub(lambda found: convert(found[1]), words)
            parts.append({"words": Markup(markdown.render(words))})
    return page.template(TEMPLATE).render(title=title, place=place, parts=parts)
