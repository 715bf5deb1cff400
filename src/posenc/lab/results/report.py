"""Records to a page: one HTML file that needs nothing beside it, the figures as files, and the records in one list.

The numbers and sentences come from `summary`, the drawings from `figures`; here they are only put in order.
"""

import json
from collections.abc import Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from statistics import median
from typing import Any

from posenc.lab import store
from posenc.lab.evaluation.order import BLIND
from posenc.lab.results import figure_tables, figures, sections, statistics, summary
from posenc.lab.results.drawer import Drawer, Files
from posenc.lab.results.provenance import MOST_OF_A_VALUE, how_it_was_made, not_measured, readable, total
from posenc.lab.results.summary import Record, get, number, tasks
from posenc.lab.runs.record import MOST_WHOLE, Failure, told_apart
from posenc.lab.views import page

TEMPLATE = Path(__file__).with_name("report.html.jinja")
# Attention maps in the page, over all tasks; more would make it slow to open. The rest stay in data.json.
MOST_ATTENTION = 48
# Figures of what one run was made into.
OF_ONE_RUN = ("added", "wavelengths", "similarity", "bias")
# Keys that are listed one by one.
MOST_KEYS = 400


def write(
    records: list[Record],
    folder: Path,
    settings: dict[str, Any] | None = None,
    failures: Sequence[Failure] = (),
    files: Files | None = None,
    shown: summary.Settled | None = None,
) -> Path:
    """Write report.html, data.json and the files of the figures into the folder, and return the path of the page.

    failures   runs that have no record, and why
    files      how the files of the figures are to be; default: figures/*.png, as in the page
    shown      the records as people are shown them, where others need them too; default: `summary.shown` of them

    Every file is put in place whole. data.json holds the records as given, except that NaN and infinities, which JSON
    does not have, become null.

    Raises ValueError for an empty list, and where the folder of its figures is a link to elsewhere.
    """
    summary.need_records(records)
    folder = Path(folder)
    drawer = Drawer(store.inside(folder, "figures"), files)
    failed = [Failure(*one) for one in summary.legible(failures, summary.MOST_OF_A_SENTENCE)]
    text = render(shown or summary.shown(records), summary.legible(settings or {}), failed, drawer)
    store.write(folder / "data.json", as_json(records).encode())
    store.write(folder / "report.html", text.encode())
    return folder / "report.html"


def as_json(records: list[Record]) -> str:
    """The records as JSON, which is strict."""
    strictly = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    try:
        return strictly(records)
    except (ValueError, TypeError):
        return strictly(page.shortened(records, digits=17))


def render(records: Sequence[Record], settings: dict[str, Any], failures: Sequence[Failure], draw: Drawer) -> str:
    paragraphs, asked = summary.paragraphs(records), summary.tasks_of(records, failures)
    return page.template(TEMPLATE).render(
        looks=figures.looks(records),
        overall=paragraphs[0],
        failed=[failure.words for failure in failures],
        answers=paragraphs[1:],
        facts=[*facts(records), *([("failed", str(len(failures)))] if failures else [])],
        tables=[table_of(table) for task in asked for table in summary.task_tables(records, task, failures)],
        pairs=[(task, matrices) for task in asked if (matrices := summary.pairs(summary.results(records, task)))],
        own=any(map(summary.is_own, summary.results(records))),
        headline=headline_of(records, draw),
        curves=[curves_of(records, task, draw) for task in tasks(records)],
        order=order_of(records),
        pictures=pictures_of(records, draw),
        attention=attention_of(records, draw),
        made=how_it_was_made(records),
        settings=[(name, summary.legible(readable(value), MOST_OF_A_VALUE)) for name, value in settings.items()],
        unmeasured=[*(f"Failed: {failure.words}" for failure in failures), *not_measured(records)],
        apart=told_apart(records),
        keys=[str(key) for run in records if (key := get(run, "key"))][:MOST_KEYS],
        left_out=max(0, len(records) - MOST_KEYS),
        carries=summary.percent(summary.CARRIES),
        level=summary.percent(statistics.LEVEL),
        power=summary.percent(statistics.POWER),
    )


def facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The size of the comparison in a few numbers."""

    def counted(word: str, count: int, rest: str = "") -> tuple[str, str]:
        return f"{word}{'s' * (count != 1)}{rest}", str(count)

    fewest, most = (end(len(result.runs) for result in summary.results(records)) for end in (min, max))
    seeds = counted("seed", most, " each") if fewest == most else ("seeds each", f"{fewest} to {most}")
    parameters = [x for run in records if (x := number(get(run, "parameters", "model"))) is not None]
    return [
        counted("encoding", len(summary.labels(records))),
        counted("task", len(tasks(records))),
        seeds,
        counted("run", len(records)),
        ("of CPU time", summary.duration(total(records, "cpu_s"))),
        *([("parameters a model", f"{median(parameters):,.0f}")] if parameters else []),
    ]


def table_of(table: summary.TaskTable) -> dict[str, Any]:
    groups = [("", 1), *((name, len([*group])) for name, group in groupby(column.group for column in table.columns))]
    return vars(table) | {
        "groups": groups,
        "grouped": any(name for name, _ in groups),
        "meanings": {column.heading: column.meaning for column in table.columns if column.meaning},
        "wide": len(table.columns) > 9,
    }


def curves_of(records: Sequence[Record], task: str, draw: Drawer) -> dict[str, Any]:
    found = summary.results(records, task)
    several = any(len(result.runs) > 1 for result in found)
    learn = (
        "Lines are medians over the seeds, bands reach from the lowest to the highest." if several else "One run each."
    )
    captions = {
        "extrapolation": beyond_in_words(found) + " Symbols: median over the seeds that learned; bars: its interval.",
        "learning": f"{learn} The same curves against steps (left) and CPU seconds (right): an encoding may need few "
        "steps and yet be slow.",
        "ablation": "Positions of the trained model are taken away, shuffled, shifted by a constant, or swapped in two "
        "places, at the trained length. The tick is the intact score.",
        "depths": "How often what is hidden is found, in percent: the place where it stands against the length of the "
        "text, the median over the seeds that learned. The first column is the trained length.",
    }
    if len(records) > MOST_WHOLE:
        # It takes a third of the time of all figures; `not_measured` says that it is left out.
        del captions["ablation"]
    drawn = [picture(draw, kind, says, records, task) for kind, says in captions.items()]
    return {"task": task, "figures": [figure for figure in drawn if figure]}


def beyond_in_words(found: Sequence[summary.Result]) -> str:
    """How the figure of lengths beyond the trained one is read."""
    if any(result.is_text for result in found):
        return (
            "Left: how many times larger perplexity is than at the trained length; a level line extrapolates. Right: "
            "bits per byte with sliding windows, where every byte has a full context, so that a longer window cannot "
            "win by having fewer bytes with little to look at."
        )
    return (
        f"Whole answers that are right, at lengths past {summary.trained_words(found)}. Encodings that did not learn "
        "the task have no line: their score beyond the trained length would say nothing."
    )


def picture(draw: Drawer, kind: str, says: str, of: Any, *more: str, name: str = "") -> dict[str, Any] | None:
    """A figure of a kind with its caption, and where its numbers are: below it, in the tables of results, in data.json.

    of, more  what the functions of this kind in `figures` and `figure_tables` take
    name      of its files, where `kind` and `more` do not make it
    """
    name, numbers = name or "-".join((kind, *more)), getattr(figure_tables, kind, None)
    where = "in data.json" if kind in OF_ONE_RUN else "in the tables of results"
    where = where if numbers is None else "in the table below it"
    drawn = draw(name, partial(getattr(figures, kind), of, *more), says, f"Figure {name}: its numbers are {where}")
    return drawn and {**drawn, "numbers": numbers and numbers(of, *more), "in_data": kind in OF_ONE_RUN}


def order_of(records: Sequence[Record]) -> dict[str, Any] | None:
    """The order test: for each encoding and kind of attention, without position and with it, whether order is seen."""
    rows: dict[str, dict[tuple[str, int, bool], float]] = {}
    for label, record in summary.labelled(records):
        for entry in get(record, "order") or []:
            kind = get(entry, "attention"), get(entry, "layers"), bool(get(entry, "position"))
            value = number(get(entry, "equivariance" if kind[0] == "bidirectional" else "difference"))
            if value is not None:
                rows.setdefault(label, {}).setdefault(kind, value)
    if not rows:
        return None
    kinds = sorted({kind[:2] for row in rows.values() for kind in row})
    groups = [f"{attention}, {layers} layer{'s' * (layers != 1)}" for attention, layers in kinds]
    groups = ["bidirectional" if group == "bidirectional, 1 layer" else group for group in groups]
    cells = [
        (label, [order_cell(row.get((*kind, position))) for kind in kinds for position in (False, True)])
        for label, row in rows.items()
    ]
    return {"groups": groups, "rows": cells}


def order_cell(value: float | None) -> dict[str, Any]:
    """The number that an order test looks at, and what it says."""
    if value is None:
        return {"blind": None, "text": summary.NOTHING, "value": ""}
    text = f"{value:.0e}" if value < 0.01 else f"{value:.2g}"
    return {"blind": value < BLIND, "text": "blind" if value < BLIND else "sees order", "value": text}


def headline_of(records: Sequence[Record], draw: Drawer) -> dict[str, Any] | None:
    """The figure beside the answer: learning speed against reach."""
    says = (
        "Quick encodings stand to the left, those that carry far at the top. Symbols: medians; bars: their intervals. "
        "Reach: the longest tested length, over the trained one, up to which at least "
        f"{summary.percent(summary.CARRIES)} % of answers are right."
    )
    if not any(result.learned and not result.is_text for result in summary.results(records)):
        return None
    if any(not result.learned for result in summary.results(records)):
        says += " Encodings of which no seed learned the task are named below the axis."
    return picture(draw, "headline", says, records)


def pictures_of(records: Sequence[Record], draw: Drawer) -> list[dict[str, Any]]:
    untrained = " Rows below the dashed line were never trained." * figures.goes_past(records, "added")
    unseen = " Right of the dashed line are distances that training never showed." * figures.goes_past(records, "bias")
    captions = {
        "added": f"One row a position, one column a channel, after training.{untrained}",
        "wavelengths": "Positions that a pair of channels needs for one full turn, fastest pair first.",
        "similarity": "For what is added: the cosine between every two positions. For rotary: the mean over pairs of "
        "the cosine of the turn between two positions. It rises and falls; nothing makes it fall steadily with "
        "distance.",
        "bias": f"What each head adds to the logit of a key at a distance.{unseen}",
    }
    drawn = [picture(draw, kind, says, records) for kind, says in captions.items()]
    return [figure for figure in drawn if figure]


def attention_of(records: Sequence[Record], draw: Drawer) -> list[dict[str, Any]]:
    """For each task, the maps of one trained model of each encoding."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    runs = ((result, sections.telling(result)) for result in summary.results(records))
    for result, run in islice(((result, run) for result, run in runs if run), MOST_ATTENTION):
        says = "" if result.learned else "This model did not learn the task, so its maps explain nothing."
        drawn = picture(draw, "attention", says, run, name=f"attention-{result.task}-{result.label}")
        if drawn:
            figure = {**drawn, "label": result.label, "learned": bool(result.learned)}
            by_task.setdefault(result.task, []).append(figure)
    return [{"task": task, "figures": drawings} for task, drawings in by_task.items()]
