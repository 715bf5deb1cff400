"""Results as files of tables: the tidy rows for programs, the comparison of each task for a paper or a page."""

import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posenc.foreign import one_line, quoted
from posenc.foreign.text import markdown, markdown_code
from posenc.lab import store
from posenc.lab.results import frames, summary
from posenc.lab.results.summary import Cell, Column, Record
from posenc.lab.views import page


def write(records: Sequence[Record], path: Path | str) -> Path:
    """Write what records say into a file, whole or not at all; the ending of its name chooses the form.

    .csv, .parquet, .jsonl   the tidy rows of `posenc.lab.load`: one for each run and tested length
    .tex, .md                for each task the comparison: a row for each encoding, with intervals

    Raises ValueError for another ending; ModuleNotFoundError, which says what to install, where polars is missing for
    Parquet; CannotWrite.
    """
    path = Path(path)
    return store.write(path, form_of(path)(records))


def form_of(path: Path | str) -> Callable[[Sequence[Record]], bytes]:
    """What makes the file of this name. Raises ValueError for an ending that is not known, ModuleNotFoundError."""
    ending = Path(path).suffix.lower()
    if ending not in FORMS:
        raise ValueError(f"a table is written as {', '.join(FORMS)}; got {quoted(Path(path).name)}")
    if ending == ".parquet":
        frames.needed("polars", "frames")
    return FORMS[ending]


def as_csv(records: Sequence[Record]) -> bytes:
    """Rows under their names; what is not known is empty."""
    pandas = frames.needed("pandas", "lab")
    # As objects: whole numbers stay whole beside cells that are empty.
    table = pandas.DataFrame(frames.rows(records, "lengths"), dtype=object)
    return table.to_csv(index=False, lineterminator="\n").encode(errors="replace")


def as_jsonl(records: Sequence[Record]) -> bytes:
    """One row a line; null for what is not known, and for NaN and infinities, which JSON does not have."""
    # pandas writes no more than 15 digits.
    rows = page.shortened(frames.rows(records, "lengths"), digits=17)
    return "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows).encode()


def as_parquet(records: Sequence[Record]) -> bytes:
    # Of polars, which keeps whole numbers whole beside cells that are empty.
    out = io.BytesIO()
    frames.framed(frames.rows(records, "lengths"), "polars").write_parquet(out)
    return out.getvalue()


def as_latex(records: Sequence[Record]) -> bytes:
    """A table environment for each task, made for the package booktabs."""
    tables = [latex_table(task, *summary.task_table(records, task)) for task in summary.tasks(records)]
    return ("% Needs \\usepackage{booktabs}.\n\n" + "\n".join(tables)).encode()


def latex_table(task: str, columns: Sequence[Column], lines: Sequence[tuple[Any, Sequence[Cell]]]) -> str:
    pandas = frames.needed("pandas", "lab")
    headings = [(latex(column.group), latex(column.heading)) for column in columns]
    rows = [[rf"\texttt{{{latex(name.text)}}}", *map(latex_cell, cells)] for _, (name, *cells) in lines]
    table = pandas.DataFrame(rows, columns=pandas.MultiIndex.from_tuples(headings))
    return table.style.hide(axis="index").to_latex(
        column_format="l" + "r" * (len(columns) - 1),
        multicol_align="c",
        position_float="centering",
        hrules=True,
        caption=f"{latex(task)}: medians over the seeds that learned; behind them, the spread over seeds.",
        label=f"tab:{re.sub(r'[^A-Za-z0-9]+', '-', task).strip('-')}",
    )


def latex_cell(cell: Cell) -> str:
    """The number, and its interval or note in smaller letters."""
    return latex(cell.text) + (
        rf" {{\scriptsize ({latex(cell.detail.replace('..', EN_DASH))})}}" if cell.detail else ""
    )


EN_DASH = "\N{EN DASH}"

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "…": r"\ldots{}", "∞": r"$\infty$", EN_DASH: "--",
    # A quote in typewriter letters would become another one.
    "'": r"\textquotesingle{}",
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


def latex(text: str) -> str:
    """The text as LaTeX sets it letter by letter, on one line.

    >>> latex("t5_bias & 50 %")
    't5\\\\_bias \\\\& 50 \\\\%'
    """
    return "".join(LATEX.get(letter, letter) for letter in one_line(text))


def in_markdown(records: Sequence[Record]) -> bytes:
    """A heading and a table for each task."""
    parts = []
    for task in summary.tasks(records):
        headings, lines = summary.table(records, task)
        cells = [[markdown_code(line[0]).replace("|", r"\|"), *map(markdown, line[1:])] for line in lines]
        parts += [f"## {markdown(task)}", as_markdown(list(map(markdown, headings)), cells)]
    return ("\n\n".join(parts) + "\n").encode()


def as_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, of cells that are Markdown already: words to the left, and all others to the right."""
    lines: list[Any] = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


FORMS: dict[str, Callable[[Sequence[Record]], bytes]] = {
    ".csv": as_csv,
    ".parquet": as_parquet,
    ".jsonl": as_jsonl,
    ".tex": as_latex,
    ".md": in_markdown,
}
