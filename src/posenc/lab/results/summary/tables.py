"""The numbers in rows: the tables of each task."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posenc.lab.results.statistics import Spread
from posenc.lab.results.summary import claims
from posenc.lab.results.summary.claims import EXPLODES, FLAT
from posenc.lab.results.summary.runs import NOT_LEARNED, Record, Result, need_records, results, tasks
from posenc.lab.results.summary.words import NOTHING, bits, count, percent, ratio, seconds, times, trained_words
from posenc.lab.runs.record import Failure

FAILED = "failed"


@dataclass(frozen=True)
class Cell:
    """What a cell says, the interval behind it, and where it lies between bad (0) and good (1), if that has a sense."""

    text: str
    detail: str = ""
    goodness: float | None = None
    missing: bool = False

    @property
    def plain(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


CLOSED = Cell(NOT_LEARNED, missing=True)


@dataclass(frozen=True)
class Column:
    """A column: its heading, its cell for an encoding, the heading that it shares with its neighbours, its meaning."""

    heading: str
    cell: Callable[[Result], Cell]
    group: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class TaskTable:
    """A table of one task: a row for each encoding, its name first.

    An encoding that has no record there, because its runs failed, has a row without a result.
    """

    task: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[tuple[Result | None, Sequence[Cell]]]

    def of(self, names: Sequence[str]) -> "TaskTable":
        """The table with the columns of these names."""
        places = [place for place, column in enumerate(self.columns) if {column.group, column.heading} & {*names}]
        rows = [(result, [cells[0], *(cells[place + 1] for place in places)]) for result, cells in self.rows]
        return TaskTable(self.task, self.caption, [self.columns[place] for place in places], rows)

    @property
    def in_words(self) -> tuple[list[str], list[list[str]], str]:
        """Headings, rows and title as plain words."""
        headings = ["encoding", *(f"{column.group} {column.heading}".strip() for column in self.columns)]
        return headings, [[cell.plain for cell in cells] for _, cells in self.rows], f"{self.task}: {self.caption}"


def cell(spread: Spread | None, form: Callable[[float], str], goodness: Callable[[float], float] | None = None) -> Cell:
    if spread is None:
        return Cell(NOTHING, missing=True)
    low, high = form(spread.low), form(spread.high)
    good = None if goodness is None else min(1.0, max(0.0, goodness(spread.median)))
    return Cell(form(spread.median), "" if low == high else f"{low}..{high}", good)


def share(spread: Spread | None) -> Cell:
    """A share of right answers, in percent."""
    return cell(spread, percent, float)


def how_flat(value: float) -> float:
    """R(k) on the way from exploding to flat."""
    return (EXPLODES - value) / (EXPLODES - FLAT)


def carries_to(result: Result) -> Cell:
    """The longest length to which more than half of all seeds carry, and how many do."""
    at = claims.reach(result)
    if at is None:
        return Cell(NOTHING, missing=True)
    return Cell(count(at.length), f"{at.count} of {at.of} seeds" if at.of > 1 else "")


def size_of(result: Result) -> Cell:
    """The parameters of the model, and those of the encoding."""
    own = result.spread_of_all("parameters", "encoding")
    model = cell(result.spread_of_all("parameters", "model"), count)
    return Cell(model.text, f"{count(own.median)} its own" if own and own.median else "")


def tasks_of(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[str]:
    """The tasks, in order of appearance; last those of which every run failed."""
    return list(dict.fromkeys([*tasks(records), *(failure.task for failure in failures if failure.task)]))


def task_tables(records: Sequence[Record], task: str, failures: Sequence[Failure] = ()) -> list[TaskTable]:
    """The tables of one task: its scores, and of text a second one, of R. What rests on having learned says so."""
    found = results(records, task)
    failed = Counter(failure.spec for failure in failures if failure.task == task)

    def seeds(result: Result) -> Cell:
        lost = failed[result.spec]
        words = filter(None, [result.seeds(), f"{count(lost)} failed" if lost else ""])
        return Cell(str(len(result.runs)), ", ".join(words))

    kinds = text_columns(found) if any(result.is_text for result in found) else exact_match_columns(found)
    # Last, for on a narrow screen the scores come first.
    size = Column("parameters", size_of, meaning="of the whole model, and of the encoding alone")
    kinds[0][1].extend([Column("seeds", seeds), size])
    without = failed.keys() - {result.spec for result in found}
    tables = []
    for caption, columns in kinds:
        rows: list[tuple[Result | None, Sequence[Cell]]] = [
            (result, [Cell(result.label), *(column.cell(result) for column in columns)]) for result in found
        ]
        lost = [Cell(FAILED, missing=True)] * len(columns)
        rows += [(None, [Cell(spec), *lost]) for spec in failed if spec in without]
        tables.append(TaskTable(task, caption, columns, rows))
    return [table for table in tables if table.columns]


def longer(found: Sequence[Result]) -> list[tuple[float, str]]:
    """The lengths beyond the trained one, each with what stands above its column."""
    lengths = {(length, factor) for r in found for length, factor in r.lengths() if not factor or factor > 1}
    return [
        (length, f"{count(length)} ({times(factor)})" if factor else count(length))
        for length, factor in sorted(lengths, key=lambda x: x[0])
    ]


def at_length(length: float, measure: str, form: Callable[[Spread | None], Cell]) -> Callable[[Result], Cell]:
    return lambda result: form(result.at(length, measure)) if result.learned else CLOSED


def text_columns(found: Sequence[Result]) -> list[tuple[str, list[Column]]]:
    """Bits per byte, and how perplexity grows."""
    # The score at the trained length is what the gate looks at, so it is shown for every run.
    scores = [
        Column(
            f"{trained_words(found)} (trained)",
            lambda result: cell(result.spread_of_all("in_distribution", "bits_per_byte"), bits),
        )
    ]
    growth = []
    for length, words in longer(found):
        for heading, measure, meaning in (
            ("windows", "bits_per_byte", "windows side by side"),
            ("sliding", "sliding_bits_per_byte", "sliding windows: every byte has a full context"),
        ):
            value = at_length(length, measure, lambda spread: cell(spread, bits))
            scores.append(Column(heading, value, words, meaning))
        flat = at_length(length, "perplexity_ratio", lambda spread: cell(spread, ratio, how_flat))
        growth.append(Column(words, flat, "R"))
    took = Column(
        "CPU s", lambda result: Cell(cell(result.spread_of_all("train_cpu_s"), seconds).text), "", "of training"
    )
    return [
        ("bits per byte of held-out text; lower is better", [*scores, took]),
        ("R, how many times larger perplexity is; 1 is flat", growth),
    ]


def exact_match_columns(found: Sequence[Result]) -> list[tuple[str, list[Column]]]:
    """The share of answers that are right, and what learning took."""

    def if_learned(value: Callable[[Result], Cell]) -> Callable[[Result], Cell]:
        return lambda result: value(result) if result.learned else CLOSED

    shares = [Column(f"{trained_words(found)} (trained)", lambda result: share(result.in_range()), "exact match, %")]
    beyond = longer(found)
    shares += [Column(words, at_length(length, "exact_match", share), "exact match, %") for length, words in beyond]
    if beyond:
        meaning = "the longest length with at least 90 % in more than half of all seeds"
        shares.append(Column("carries to", if_learned(carries_to), meaning=meaning))
    took = (("steps", "steps_to_learned", count), ("CPU s", "cpu_s_to_learned", seconds))
    columns = [
        Column(heading, if_learned(lambda result, path=path, form=form: cell(result.spread(path), form)), "to 99 %")
        for heading, path, form in took
    ]
    return [("medians over the seeds that learned", [*shares, *columns])]


def tables(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[tuple[list[str], list[list[str]], str]]:
    """Headings, rows and title of the tables of every task, as plain words."""
    need_records(records)
    return [table.in_words for task in tasks_of(records, failures) for table in task_tables(records, task, failures)]
