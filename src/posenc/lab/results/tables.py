"""Write results as table files: tidy rows for programs, or each task's tables for a paper or page."""

import io
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from posenc.foreign import one_line, quote, suggestion
from posenc.foreign.text import escape_markdown, markdown_code
from posenc.lab import store
from posenc.lab.results import frames, summary
from posenc.lab.results.summary import Cell, Record, Result, TaskTable
from posenc.lab.runs.record import Failure
from posenc.lab.views import page


def write(
    records: Sequence[Record], path: Path | str, columns: Sequence[str] = (), failures: Sequence[Failure] = ()
) -> Path:
    """Write records as a table file, whole or not at all. The ending of the name chooses the format.

    .csv, .parquet, .jsonl   the tidy rows of `posenc.lab.load`: one for each run and tested length
    .tex, .md                the tables of each task: a row for each encoding, with intervals
    columns                  those of .tex and .md, by their headings, such as "sliding", "R", "seeds"; default: all
    failures                 runs without a record, which .tex and .md show too

    Raises ValueError for another ending or column, ModuleNotFoundError for Parquet without pyarrow, and CannotWrite.
    """
    path = Path(path)
    return store.write(path, serializer(path, columns, failures)(records))


def serializer(
    path: Path | str, columns: Sequence[str] = (), failures: Sequence[Failure] = ()
) -> Callable[[Sequence[Record]], bytes]:
    """Return the function that serialises for a file name. Raises ValueError, ModuleNotFoundError, as `write` does."""
    ending = Path(path).suffix.lower()
    if ending in TABLE_FORMATS:
        return partial(TABLE_FORMATS[ending], columns=columns, failures=failures)
    if ending not in ROW_FORMATS:
        endings = ", ".join([*ROW_FORMATS, *TABLE_FORMATS])
        raise ValueError(f"a table is written as {endings}; got {quote(Path(path).name)}")
    if columns:
        raise ValueError(f"{ending} holds every column, and --columns is for {', '.join(TABLE_FORMATS)}; leave it out")
    if ending == ".parquet":
        frames.import_library("pyarrow", "frames")
    return ROW_FORMATS[ending]


def as_csv(records: Sequence[Record]) -> bytes:
    """Return the rows with a header; missing values are empty."""
    pandas = frames.import_library("pandas", "lab")
    # As objects: integers stay integers in a column with empty cells.
    table = pandas.DataFrame(frames.rows(records, "lengths"), dtype=object)
    return table.to_csv(index=False, lineterminator="\n").encode(errors="replace")


def as_jsonl(records: Sequence[Record]) -> bytes:
    """Return one row a line; null for missing values, NaN and infinities."""
    # pandas writes no more than 15 digits.
    rows = page.jsonable(frames.rows(records, "lengths"), digits=17)
    return "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows).encode()


def as_parquet(records: Sequence[Record]) -> bytes:
    out = io.BytesIO()
    # With pandas' nullable types, integers stay integers in a column with empty cells.
    frames.data_frame(frames.rows(records, "lengths")).convert_dtypes().to_parquet(out, index=False)
    return out.getvalue()


def select_tables(
    records: Sequence[Record], names: Sequence[str], failures: Sequence[Failure], exclude: Sequence[str] = ()
) -> list[TaskTable]:
    """Return the tables of all tasks with the named columns, or with all but those of `exclude`.

    Raises ValueError for an unknown name.
    """
    tables = [
        table for task in summary.all_tasks(records, failures) for table in summary.task_tables(records, task, failures)
    ]
    headings = [name for table in tables for column in table.columns for name in (column.group, column.heading)]
    known_names = [name for name in dict.fromkeys(headings) if name]
    for name in names:
        if name not in known_names:
            listing = ", ".join(map(quote, known_names))
            raise ValueError(f"no column {quote(name)}; there are: {listing}{suggestion(name, known_names)}")
    selection = names or [name for name in known_names if name not in exclude]
    return [part for table in tables if (part := table.select(selection)).columns]


def as_latex(records: Sequence[Record], columns: Sequence[str] = (), failures: Sequence[Failure] = ()) -> bytes:
    """Return table environments for booktabs; parameters are left out, because nine columns fit a page."""
    tables = "\n".join(map(latex_table, select_tables(records, columns, failures, exclude=["parameters"])))
    return f"% Needs \\usepackage{{booktabs}}.\n\n{tables}".encode()


def latex_table(table: TaskTable) -> str:
    pandas = frames.import_library("pandas", "lab")
    headings = [("", "encoding"), *((latex(column.group), latex(column.heading)) for column in table.columns)]
    rows = [[latex_name(result, name.text), *map(latex_cell, cells)] for result, (name, *cells) in table.rows]
    has_groups = any(group for group, _ in headings)
    names = pandas.MultiIndex.from_tuples(headings) if has_groups else [heading for _, heading in headings]
    frame = pandas.DataFrame(rows, columns=names)
    text = frame.style.hide(axis="index").to_latex(
        column_format="l" + "r" * len(table.columns),
        multicol_align="c",
        position_float="centering",
        hrules=True,
        caption=f"{latex(table.task)}: {latex(table.caption)}. Below a number: its interval.",
        label=f"tab:{re.sub(r'[^A-Za-z0-9]+', '-', f'{table.task} {table.caption[:4]}').strip('-')}",
    )
    return text.replace("\\centering\n", LATEX_SIZES, 1)


def latex_name(result: Result | None, label: str) -> str:
    """Return a spec in typewriter letters, and a name of the user's as it is."""
    return rf"\texttt{{{latex(label)}}}" if result is None or label.startswith(result.spec) else latex(label)


def latex_cell(cell: Cell) -> str:
    """Return the number with its interval or note in smaller letters below it."""
    if not cell.detail:
        return latex(cell.text)
    small = latex(cell.detail.replace("..", EN_DASH))
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{latex(cell.text)}\\[-3pt]{{\tiny {small}}}\end{{tabular}}"


LATEX_SIZES = r"""\centering\footnotesize\setlength{\tabcolsep}{2pt}\setlength{\belowcaptionskip}{4pt}
"""
EN_DASH = "\N{EN DASH}"

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "…": r"\ldots{}", "∞": r"$\infty$", EN_DASH: "--",
    # In typewriter letters a plain quote would become a curly one.
    "'": r"\textquotesingle{}",
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


def latex(text: str) -> str:
    """Escape a text for LaTeX, on one line.

    >>> latex("t5_bias & 50 %")
    't5\\\\_bias \\\\& 50 \\\\%'
    """
    return "".join(LATEX.get(letter, letter) for letter in one_line(text))


def as_markdown(records: Sequence[Record], columns: Sequence[str] = (), failures: Sequence[Failure] = ()) -> bytes:
    """Return the tables with a heading for each."""
    parts = []
    for table in select_tables(records, columns, failures):
        headings, lines, title = table.plain_rows
        cells = [[markdown_code(line[0]).replace("|", r"\|"), *map(escape_markdown, line[1:])] for line in lines]
        parts += [f"## {escape_markdown(title)}", markdown_table(list(map(escape_markdown, headings)), cells)]
    return ("\n\n".join(parts) + "\n").encode()


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of cells that are Markdown already: the first column left-aligned, others right."""
    lines: list[Any] = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


ROW_FORMATS: dict[str, Callable[..., bytes]] = {".csv": as_csv, ".parquet": as_parquet, ".jsonl": as_jsonl}
TABLE_FORMATS: dict[str, Callable[..., bytes]] = {".tex": as_latex, ".md": as_markdown}
"""The formats with a choice of columns."""
