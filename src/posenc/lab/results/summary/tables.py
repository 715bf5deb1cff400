"""The tables of each task."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from posenc.lab.results.statistics import Estimate
from posenc.lab.results.summary import claims
from posenc.lab.results.summary.claims import EXPLODING_RATIO, FLAT_RATIO
from posenc.lab.results.summary.formatting import DASH, bits, count, percent, ratio, seconds, times, trained_text
from posenc.lab.results.summary.runs import NOT_LEARNED, Record, Result, require_records, results, tasks
from posenc.lab.runs.record import Failure

FAILED_TEXT = "failed"

PlainTable: TypeAlias = tuple[list[str], list[list[str]], str]  # headings, rows, title


@dataclass(frozen=True)
class Cell:
    """A cell: its text, the interval behind it, and any goodness from 0 to 1."""

    text: str
    detail: str = ""
    goodness: float | None = None
    is_missing: bool = False

    @property
    def plain_text(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


NOT_LEARNED_CELL = Cell(NOT_LEARNED, is_missing=True)


@dataclass(frozen=True)
class Column:
    """A column: its heading, its cell for an encoding, the heading of its group, its meaning."""

    heading: str
    cell: Callable[[Result], Cell]
    group: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class TaskTable:
    """A table of one task: a row for each encoding, its name first.

    An encoding without records, because its runs failed, has a row without a result.
    """

    task: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[tuple[Result | None, Sequence[Cell]]]

    def select(self, names: Sequence[str]) -> "TaskTable":
        """Return the table with the columns of these names."""
        places = [place for place, column in enumerate(self.columns) if {column.group, column.heading} & {*names}]
        rows = [(result, [cells[0], *(cells[place + 1] for place in places)]) for result, cells in self.rows]
        return TaskTable(self.task, self.caption, [self.columns[place] for place in places], rows)

    @property
    def plain_rows(self) -> PlainTable:
        """Headings, rows and title as plain text."""
        headings = ["encoding", *(f"{column.group} {column.heading}".strip() for column in self.columns)]
        return headings, [[cell.plain_text for cell in cells] for _, cells in self.rows], f"{self.task}: {self.caption}"


def to_cell(value: Estimate | None, form: Callable[[float], str], goodness: Callable | None = None) -> Cell:
    if value is None:
        return Cell(DASH, is_missing=True)
    low, high = form(value.low), form(value.high)
    shade = None if goodness is None else min(1.0, max(0.0, goodness(value.median)))
    return Cell(form(value.median), "" if low == high else f"{low}..{high}", shade)


def share_cell(estimate: Estimate | None) -> Cell:
    """Return the cell of a share of right answers, in percent."""
    return to_cell(estimate, percent, float)


def flatness(value: float) -> float:
    """Return the goodness of R(k): 0 where it explodes, 1 where it is flat."""
    return (EXPLODING_RATIO - value) / (EXPLODING_RATIO - FLAT_RATIO)


def reach_cell(result: Result) -> Cell:
    """Return the cell of the longest length to which more than half of all seeds carry."""
    reach = claims.longest_reach(result)
    if reach is None:
        return Cell(DASH, is_missing=True)
    return Cell(count(reach.length), f"{reach.count} of {reach.seeds} seeds" if reach.seeds > 1 else "")


def size_cell(result: Result) -> Cell:
    """Return the cell of the parameters of the model, and those of the encoding."""
    encoding_size = result.estimate_of_all("parameters", "encoding")
    model = to_cell(result.estimate_of_all("parameters", "model"), count)
    return Cell(model.text, f"{count(encoding_size.median)} its own" if encoding_size and encoding_size.median else "")


def all_tasks(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[str]:
    """Return the tasks in order of appearance; last those whose runs all failed."""
    return list(dict.fromkeys([*tasks(records), *(failure.task for failure in failures if failure.task)]))


def task_tables(records: Sequence[Record], task: str, failures: Sequence[Failure] = ()) -> list[TaskTable]:
    """Return the tables of one task: its scores, and for text a second table of R."""
    group = results(records, task)
    failure_counts = Counter(failure.spec for failure in failures if failure.task == task)

    def seeds(result: Result) -> Cell:
        failures = failure_counts[result.spec]
        words = filter(None, [result.seeds(), f"{count(failures)} failed" if failures else ""])
        return Cell(str(len(result.runs)), ", ".join(words))

    groups = text_columns(group) if any(result.is_text for result in group) else exact_match_columns(group)
    # Last, so that a narrow screen shows the scores.
    size = Column("parameters", size_cell, meaning="of the whole model, and of the encoding alone")
    groups[0][1].extend([Column("seeds", seeds), size])
    missing_specs = failure_counts.keys() - {result.spec for result in group}
    tables = []
    for caption, columns in groups:
        rows: list[tuple[Result | None, Sequence[Cell]]] = [
            (result, [Cell(result.label), *(column.cell(result) for column in columns)]) for result in group
        ]
        failure_cells = [Cell(FAILED_TEXT, is_missing=True)] * len(columns)
        rows += [(None, [Cell(spec), *failure_cells]) for spec in failure_counts if spec in missing_specs]
        tables.append(TaskTable(task, caption, columns, rows))
    return [table for table in tables if table.columns]


def longer_lengths(results: Sequence[Result]) -> list[tuple[float, str]]:
    """Return the lengths beyond the trained one, each with the heading of its column."""
    lengths = {(length, factor) for r in results for length, factor in r.lengths() if not factor or factor > 1}
    return [
        (length, f"{count(length)} ({times(factor)})" if factor else count(length))
        for length, factor in sorted(lengths, key=lambda x: x[0])
    ]


def length_cell(length: float, measure: str, form: Callable[[Estimate | None], Cell]) -> Callable[[Result], Cell]:
    return lambda result: form(result.at(length, measure)) if result.learned else NOT_LEARNED_CELL


def text_columns(results: Sequence[Result]) -> list[tuple[str, list[Column]]]:
    """Return the columns of text: bits per byte, and the growth of perplexity."""
    # The score at the trained length decides whether a run learned, so it is shown for every run.
    scores = [
        Column(
            f"{trained_text(results)} (trained)",
            lambda result: to_cell(result.estimate_of_all("in_distribution", "bits_per_byte"), bits),
        )
    ]
    growth = []
    for length, words in longer_lengths(results):
        for heading, measure, meaning in (
            ("windows", "bits_per_byte", "windows side by side"),
            ("sliding", "sliding_bits_per_byte", "sliding windows: every byte has a full context"),
        ):
            value = length_cell(length, measure, lambda estimate: to_cell(estimate, bits))
            scores.append(Column(heading, value, words, meaning))
        flat = length_cell(length, "perplexity_ratio", lambda estimate: to_cell(estimate, ratio, flatness))
        growth.append(Column(words, flat, "R"))

    def cpu_time(result: Result) -> Cell:
        return Cell(to_cell(result.estimate_of_all("train_cpu_s"), seconds).text)

    return [
        ("bits per byte of held-out text; lower is better", [*scores, Column("CPU s", cpu_time, "", "of training")]),
        ("R, how many times larger perplexity is; 1 is flat", growth),
    ]


def exact_match_columns(results: Sequence[Result]) -> list[tuple[str, list[Column]]]:
    """Return the columns of an exact task: the share of right answers, and the cost of learning."""

    def if_learned(value: Callable[[Result], Cell]) -> Callable[[Result], Cell]:
        return lambda result: value(result) if result.learned else NOT_LEARNED_CELL

    group, longer = "exact match, %", longer_lengths(results)
    shares = [Column(f"{trained_text(results)} (trained)", lambda result: share_cell(result.in_range()), group)]
    shares += [Column(words, length_cell(length, "exact_match", share_cell), group) for length, words in longer]
    if longer:
        meaning = "the longest length with at least 90 % in more than half of all seeds"
        shares.append(Column("carries to", if_learned(reach_cell), meaning=meaning))
    costs = (("steps", "steps_to_learned", count), ("CPU s", "cpu_s_to_learned", seconds))
    columns = [
        Column(heading, if_learned(lambda r, path=path, form=form: to_cell(r.estimate(path), form)), "to 99 %")
        for heading, path, form in costs
    ]
    return [("medians over the seeds that learned", [*shares, *columns])]


def plain_tables(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[PlainTable]:
    """Return headings, rows and title of the tables of every task, as plain text."""
    require_records(records)
    return [table.plain_rows for task in all_tasks(records, failures) for table in task_tables(records, task, failures)]
