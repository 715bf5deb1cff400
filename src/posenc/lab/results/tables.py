"""Results as files of tables: the tidy rows for programs, the comparison of each task for a paper or a page."""

import io
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from posenc.foreign import near, one_line, quoted
from posenc.foreign.text import markdown, markdown_code
from posenc.lab import store
from posenc.lab.results import frames, summary
from posenc.lab.results.summary import Cell, Record, Result, TaskTable
from posenc.lab.runs.record import Failure
from posenc.lab.views import page


def write(
    records: Sequence[Record], path: Path | str, columns: Sequence[str] = (), failures: Sequence[Failure] = ()
) -> Path:
    """Write what records say into a file, whole or not at all; the ending of its name chooses the form.

    .csv, .parquet, .jsonl   the tidy rows of `posenc.lab.load`: one for each run and tested length
    .tex, .md                the tables of each task: a row for each encoding, with intervals
    columns                  those of .tex and .md, by their headings, such as "sliding", "R", "seeds"; default: all
    failures                 runs without a record, which .tex and .md show too

    Raises ValueError for another ending, and for columns that there are not; ModuleNotFoundError, which says what to
    install, where a library is missing for Parquet; CannotWrite.
    """
    path = Path(path)
    return store.write(path, form_of(path, columns, failures)(records))


def form_of(
    path: Path | str, columns: Sequence[str] = (), failures: Sequence[Failure] = ()
) -> Callable[[Sequence[Record]], bytes]:
    """What makes the file of this name. Raises ValueError for an ending that is not known, ModuleNotFoundError."""
    ending = Path(path).suffix.lower()
    if ending in CHOSEN:
        return partial(CHOSEN[ending], columns=columns, failures=failures)
    if ending not in TIDY:
        endings = ", ".join([*TIDY, *CHOSEN])
        raise ValueError(f"a table is written as {endings}; got {quoted(Path(path).name)}")
    if columns:
        raise ValueError(f"{ending} holds every column, and --columns is for {', '.join(CHOSEN)}; leave it out")
    if ending == ".parquet":
        frames.needed("pyarrow", "frames")
    return TIDY[ending]


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
    out = io.BytesIO()
    # With types of pandas' own, whole numbers stay whole beside cells that are empty.
    frames.framed(frames.rows(records, "lengths")).convert_dtypes().to_parquet(out, index=False)
    return out.getvalue()


def tables_of(
    records: Sequence[Record], names: Sequence[str], failures: Sequence[Failure], without: Sequence[str] = ()
) -> list[TaskTable]:
    """The tables of all tasks with the columns of these names, or all `without` some.

    Raises ValueError for a name that none has.
    """
    tables = [
        table for task in summary.tasks_of(records, failures) for table in summary.task_tables(records, task, failures)
    ]
    both = [name for table in tables for column in table.columns for name in (column.group, column.heading)]
    known = [name for name in dict.fromkeys(both) if name]
    for name in names:
        if name not in known:
            raise ValueError(f"no column {quoted(name)}; there are: {', '.join(map(quoted, known))}{near(name, known)}")
    wanted = names or [name for name in known if name not in without]
    return [part for table in tables if (part := table.of(wanted)).columns]


def as_latex(records: Sequence[Record], columns: Sequence[str] = (), failures: Sequence[Failure] = ()) -> bytes:
    """Table environments, made for the package booktabs; nine columns fit a page, so parameters are asked for."""
    tables = "\n".join(map(latex_table, tables_of(records, columns, failures, without=["parameters"])))
    return f"% Needs \\usepackage{{booktabs}}.\n\n{tables}".encode()


def latex_table(table: TaskTable) -> str:
    pandas = frames.needed("pandas", "lab")
    headings = [("", "encoding"), *((latex(column.group), latex(column.heading)) for column in table.columns)]
    rows = [[latex_name(result, name.text), *map(latex_cell, cells)] for result, (name, *cells) in table.rows]
    grouped = any(group for group, _ in headings)
    names = pandas.MultiIndex.from_tuples(headings) if grouped else [heading for _, heading in headings]
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
    """A spec in typewriter letters; a name that a person gave as it is."""
    return rf"\texttt{{{latex(label)}}}" if result is None or label.startswith(result.spec) else latex(label)


def latex_cell(cell: Cell) -> str:
    """The number, and its interval or note in smaller letters below it."""
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


def in_markdown(records: Sequence[Record], columns: Sequence[str] = (), failures: Sequence[Failure] = ()) -> bytes:
    """A heading for each table."""
    parts = []
    for table in tables_of(records, columns, failures):
        headings, lines, title = table.in_words
        cells = [[markdown_code(line[0]).replace("|", r"\|"), *map(markdown, line[1:])] for line in lines]
        parts += [f"## {markdown(title)}", as_markdown(list(map(markdown, headings)), cells)]
    return ("\n\n".join(parts) + "\n").encode()


def as_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, of cells that are Markdown already: words to the left, and all others to the right."""
    lines: list[Any] = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TIDY: dict[str, Callable[[Sequence[Record]], bytes]] = {".csv": as_csv, ".parquet": as_parquet, ".jsonl": as_jsonl}
CHOSEN: dict[str, Callable[..., bytes]] = {".tex": as_latex, ".md": in_markdown}
"""The forms whose columns may be chosen."""
