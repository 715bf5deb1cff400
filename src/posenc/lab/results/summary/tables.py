"""The numbers in rows: one table for each task, or all tasks side by side."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posenc.lab.results.statistics import Spread
from posenc.lab.results.summary import claims
from posenc.lab.results.summary.claims import EXPLODES, FLAT
from posenc.lab.results.summary.runs import NOT_LEARNED, Record, Result, need_records, results, tasks, trained_lengths
from posenc.lab.results.summary.words import (
    NOTHING,
    bits,
    count,
    in_range_of_all,
    listed,
    percent,
    ratio,
    seconds,
    times,
)
from posenc.lab.runs.record import Failure

FAILED = "failed"


@dataclass(frozen=True)
class Column:
    """A column: its heading, the heading above it that it shares with its neighbours, and what it means."""

    heading: str
    group: str = ""
    meaning: str = ""

    @property
    def title(self) -> str:
        return f"{self.group} {self.heading}".strip()


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


def cell(spread: Spread | None, form: Callable[[float], str], goodness: Callable[[float], float] | None = None) -> Cell:
    if spread is None:
        return Cell(NOTHING, missing=True)
    low, high = form(spread.low), form(spread.high)
    good = None if goodness is None else min(1.0, max(0.0, goodness(spread.median)))
    return Cell(form(spread.median), "" if low == high else f"{low}..{high}", good)


def carries_to(result: Result) -> Cell:
    """The longest length to which more than half of all seeds carry, and how many do."""
    at = claims.reach(result)
    if at is None:
        return Cell(NOTHING, missing=True)
    return Cell(count(at.length), f"{at.count} of {at.of} seeds" if at.of > 1 else "")


def how_flat(value: float) -> float:
    """R(k) on the way from exploding to flat."""
    return (EXPLODES - value) / (EXPLODES - FLAT)


def tasks_of(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[str]:
    """The tasks, in order of appearance; last those of which every run failed."""
    return list(dict.fromkeys([*tasks(records), *(failure.task for failure in failures if failure.task)]))


def task_table(
    records: Sequence[Record], task: str, failures: Sequence[Failure] = ()
) -> tuple[list[Column], list[tuple[Result | None, list[Cell]]]]:
    """A row for each encoding on one task. Whatever rests on having learned says so where it did not.

    An encoding that has no record there, because its runs failed, has a row without a result.
    """
    found = results(records, task)
    text = any(result.is_text for result in found)
    lengths = sorted(
        {(length, factor) for r in found for length, factor in r.lengths() if not factor or factor > 1},
        key=lambda x: x[0],
    )
    columns = [Column("encoding")]
    measures: list[tuple[float, str, Callable[[float], str], Callable[[float], float] | None]] = []
    trained = listed([count(x) for x in trained_lengths(found)] or ["in range"], "or")
    if text:
        columns.append(
            Column(
                "bits per byte", f"{trained} (trained)", "held-out text, windows of the trained length; lower is better"
            )
        )
        for length, factor in lengths:
            group = f"{count(length)} ({times(factor)})" if factor else count(length)
            columns.append(Column("windows", group, "bits per byte, windows side by side"))
            columns.append(Column("sliding", group, "bits per byte, sliding windows: every byte has a full context"))
            columns.append(Column("R", group, "perplexity over that at the trained length; 1 is flat"))
            measures += [(length, "bits_per_byte", bits, None), (length, "sliding_bits_per_byte", bits, None)]
            measures.append((length, "perplexity_ratio", ratio, how_flat))
        columns.append(Column("CPU s", meaning="of training, all steps"))
    else:
        columns.append(Column(f"{trained} (trained)", "exact match, %"))
        for length, factor in lengths:
            columns.append(Column(f"{count(length)} ({times(factor)})" if factor else count(length), "exact match, %"))
            measures.append((length, "exact_match", percent, lambda x: x))
        if lengths:
            columns.append(
                Column("carries to", meaning="the longest length with at least 90 % in more than half of all seeds")
            )
        columns += [Column("steps", "to 99 %"), Column("CPU s", "to 99 %")]
    # Last, for on a narrow screen the scores come first.
    columns += [Column("seeds"), Column("parameters", meaning="of the whole model, and of the encoding alone")]
    rows: list[tuple[Result | None, list[Cell]]] = []
    failed = Counter(failure.spec for failure in failures if failure.task == task)
    for r in found:
        closed = Cell(NOT_LEARNED, missing=True)
        model, own = r.spread_of_all("parameters", "model"), r.spread_of_all("parameters", "encoding")
        size = cell(model, count)
        if own:
            size = Cell(size.text, f"{count(own.median)} its own")
        row = [Cell(r.label)]
        # The score at the trained length is what the gate looks at, so it is shown for every run.
        if text:
            row.append(cell(r.spread_of_all("in_distribution", "bits_per_byte"), bits))
        else:
            row.append(cell(r.in_range(), percent, lambda x: x))
        for length, measure, form, goodness in measures:
            shown = cell(r.at(length, measure), form, goodness) if r.learned else closed
            # Of three columns for each length of a text, R carries the interval; three would not fit a page.
            row.append(Cell(shown.text, missing=shown.missing) if measure.endswith("bits_per_byte") else shown)
        if text:
            row.append(Cell(cell(r.spread_of_all("train_cpu_s"), seconds).text))
        else:
            if lengths:
                row.append(carries_to(r) if r.learned else closed)
            row.append(cell(r.spread("steps_to_learned"), count) if r.learned else closed)
            row.append(cell(r.spread("cpu_s_to_learned"), seconds) if r.learned else closed)
        seeds = [r.seeds(), f"{count(failed.pop(r.label))} failed" if r.label in failed else ""]
        row += [Cell(str(len(r.runs)), ", ".join(filter(None, seeds))), size]
        rows.append((r, row))
    rows += [(None, [Cell(spec), *[Cell(FAILED, missing=True)] * (len(columns) - 1)]) for spec in failed]
    return columns, rows


def table(
    records: Sequence[Record], task: str | None = None, failures: Sequence[Failure] = ()
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as plain words: of one task with all its lengths, or of all tasks side by side.

    Side by side, a column stands for a multiple of the trained length, and a cell says what it is: '97 %' is exact
    match, 'R 1.02' a ratio of perplexities.
    """
    need_records(records)
    names = tasks_of(records, failures)
    if task is None and len(names) == 1:
        task = names[0]
    if task is not None:
        columns, rows = task_table(records, task, failures)
        return [column.title for column in columns], [[cell.plain for cell in row] for _, row in rows]
    found = results(records)
    factors = sorted({factor for r in found for _, factor in r.lengths() if factor and factor > 1})
    headings = ["task", "encoding", "parameters", "seeds", "trained length", *map(times, factors), "CPU s to 99 %"]
    out = []
    for r in found:
        size = cell(r.spread_of_all("parameters", "model"), count).text
        seeds = f"{len(r.learned)} of {len(r.runs)} learned" if r.seeds() else str(len(r.runs))
        if failed := sum((one.task, one.spec) == (r.task, r.label) for one in failures):
            seeds += f", {failed} failed"
        line = [r.task, r.label, size, seeds, in_range_of_all(r).replace(" exact match", "") or NOTHING]
        measure, form = (
            ("perplexity_ratio", lambda x: f"R {ratio(x)}")
            if r.is_text
            else ("exact_match", lambda x: f"{percent(x)} %")
        )
        at = {factor: length for length, factor in r.lengths()}
        for factor in factors:
            if factor not in at:
                line.append("")
            else:
                line.append(cell(r.at(at[factor], measure), form).plain if r.learned else NOT_LEARNED)
        if r.is_text:
            line.append("")
        else:
            line.append(cell(r.spread("cpu_s_to_learned"), seconds).plain if r.learned else NOT_LEARNED)
        out.append(line)
    lost = {(one.task, one.spec): None for one in failures if one.spec}.keys() - {(r.task, r.label) for r in found}
    out += [[*one, *[FAILED] * (len(headings) - 2)] for one in sorted(lost)]
    return headings, sorted(out, key=lambda line: names.index(line[0]))
