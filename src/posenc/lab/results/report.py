"""Write a report: one self-contained HTML page, the figures as files, and the records in one list.

The numbers and sentences come from `summary`, the drawings from `figures`; this module only puts them in order.
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
from posenc.lab.results.provenance import MAX_VALUE_LETTERS, missing_measurements, provenance_rows, total, value_text
from posenc.lab.results.summary import Record, get, number, tasks
from posenc.lab.runs.record import MOST_WITH_PICTURES, Failure, version_differences
from posenc.lab.views import page

TEMPLATE = Path(__file__).with_name("report.html.jinja")
# The most attention maps in the page; more would make it slow to open. The rest stay in data.json.
MAX_ATTENTION_FIGURES = 48
# Figures of one run.
RUN_FIGURES = ("added", "wavelengths", "similarity", "bias")
MAX_KEYS = 400


def write(
    records: list[Record],
    folder: Path,
    settings: dict[str, Any] | None = None,
    failures: Sequence[Failure] = (),
    files: Files | None = None,
    index: summary.IndexedRecords | None = None,
) -> Path:
    """Write report.html, data.json and the figures' files into the folder, and return the page's path.

    failures   runs that have no record, and why
    files      options of the files of figures; default: figures/*.png, as in the page
    index      the records for display, if the caller has them; default: `summary.records_for_display` of them

    Every file is written whole or not at all. data.json holds the records as given, except that NaN and infinities,
    which JSON does not have, become null.

    Raises ValueError for an empty list, and if the folder of the figures is a link to elsewhere.
    """
    summary.require_records(records)
    folder = Path(folder)
    drawer = Drawer(store.subfolder(folder, "figures"), files)
    failed = [Failure(*failure) for failure in summary.for_display(failures, summary.MAX_SENTENCE_LETTERS)]
    text = render(index or summary.records_for_display(records), summary.for_display(settings or {}), failed, drawer)
    store.write(folder / "data.json", as_json(records).encode())
    store.write(folder / "report.html", text.encode())
    return folder / "report.html"


def as_json(records: list[Record]) -> str:
    """Return the records as strict JSON."""
    strictly = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    try:
        return strictly(records)
    except (ValueError, TypeError):
        return strictly(page.jsonable(records, digits=17))


def render(records: Sequence[Record], settings: dict[str, Any], failures: Sequence[Failure], draw: Drawer) -> str:
    paragraphs, task_names = summary.paragraphs(records), summary.all_tasks(records, failures)
    return page.template(TEMPLATE).render(
        looks=figures.looks(records),
        overall=paragraphs[0],
        failed=[failure.words for failure in failures],
        answers=paragraphs[1:],
        facts=[*size_facts(records), *([("failed", str(len(failures)))] if failures else [])],
        tables=[table_context(table) for task in task_names for table in summary.task_tables(records, task, failures)],
        pairs=[(task, pairs) for task in task_names if (pairs := summary.pair_tables(summary.results(records, task)))],
        own=any(map(summary.is_external, summary.results(records))),
        headline=headline_of(records, draw),
        curves=[curves_of(records, task, draw) for task in tasks(records)],
        order=order_of(records),
        pictures=pictures_of(records, draw),
        attention=attention_of(records, draw),
        made=provenance_rows(records),
        settings=[(key, summary.for_display(value_text(value), MAX_VALUE_LETTERS)) for key, value in settings.items()],
        unmeasured=[*(f"Failed: {failure.words}" for failure in failures), *missing_measurements(records)],
        apart=version_differences(records),
        keys=[str(key) for run in records if (key := get(run, "key"))][:MAX_KEYS],
        left_out=max(0, len(records) - MAX_KEYS),
        carries=summary.percent(summary.CARRY_THRESHOLD),
        level=summary.percent(statistics.LEVEL),
        power=summary.percent(statistics.POWER),
    )


def size_facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return (name, number): the size of the comparison."""

    def count_label(word: str, count: int, rest: str = "") -> tuple[str, str]:
        return f"{word}{'s' * (count != 1)}{rest}", str(count)

    fewest, largest = (end(len(result.runs) for result in summary.results(records)) for end in (min, max))
    seeds = count_label("seed", largest, " each") if fewest == largest else ("seeds each", f"{fewest} to {largest}")
    parameters = [x for run in records if (x := number(get(run, "parameters", "model"))) is not None]
    return [
        count_label("encoding", len(summary.labels(records))),
        count_label("task", len(tasks(records))),
        seeds,
        count_label("run", len(records)),
        ("of CPU time", summary.duration(total(records, "cpu_s"))),
        *([("parameters a model", f"{median(parameters):,.0f}")] if parameters else []),
    ]


def table_context(table: summary.TaskTable) -> dict[str, Any]:
    groups = [("", 1), *((name, len([*group])) for name, group in groupby(column.group for column in table.columns))]
    return vars(table) | {
        "groups": groups,
        "grouped": any(name for name, _ in groups),
        "meanings": {column.heading: column.meaning for column in table.columns if column.meaning},
        "wide": len(table.columns) > 9,
    }


def curves_of(records: Sequence[Record], task: str, draw: Drawer) -> dict[str, Any]:
    results = summary.results(records, task)
    learn = "One run each."
    if any(len(result.runs) > 1 for result in results):
        learn = "Lines are medians over the seeds, bands reach from the lowest to the highest."
    captions = {
        "extrapolation": lengths_caption(results) + " Symbols: median over the seeds that learned; bars: its interval.",
        "learning": f"{learn} The same curves against steps (left) and CPU seconds (right): an encoding may need few "
        "steps and yet be slow.",
        "ablation": "Positions of the trained model are taken away, shuffled, shifted by a constant, or swapped in two "
        "places, at the trained length. The tick is the intact score.",
        "depths": "How often what is hidden is found, in percent: the place where it stands against the length of the "
        "text, the median over the seeds that learned. The first column is the trained length.",
    }
    if len(records) > MOST_WITH_PICTURES:
        # It takes a third of the time of all figures; `missing_measurements` says that it is left out.
        del captions["ablation"]
    contexts = [figure_context(draw, kind, caption, records, task) for kind, caption in captions.items()]
    return {"task": task, "figures": [figure for figure in contexts if figure]}


def lengths_caption(results: Sequence[summary.Result]) -> str:
    """Return the caption of the figure of lengths beyond the trained one."""
    if any(result.is_text for result in results):
        return (
            "Left: how many times larger perplexity is than at the trained length; a level line extrapolates. Right: "
            "bits per byte with sliding windows, where every byte has a full context, so that a longer window cannot "
            "win by having fewer bytes with little to look at."
        )
    return (
        f"Whole answers that are right, at lengths past {summary.trained_text(results)}. Encodings that did not learn "
        "the task have no line: their score beyond the trained length would say nothing."
    )


def figure_context(draw: Drawer, kind: str, caption: str, data: Any, *details: str, name: str = "") -> dict | None:
    """Return a figure with its caption and its numbers. They are below it, in the tables of results, or in data.json.

    data, details  the arguments of the functions called `kind` in `figures` and `figure_tables`
    name           of its files; default: made of `kind` and `details`
    """
    name, numbers = name or "-".join((kind, *details)), getattr(figure_tables, kind, None)
    where = "in data.json" if kind in RUN_FIGURES else "in the tables of results"
    where = where if numbers is None else "in the table below it"
    draw_figure = partial(getattr(figures, kind), data, *details)
    context = draw(name, draw_figure, caption, f"Figure {name}: its numbers are {where}")
    return context and {**context, "numbers": numbers and numbers(data, *details), "in_data": kind in RUN_FIGURES}


def order_of(records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the order test of each encoding and kind of attention, without position and with it."""
    rows: dict[str, dict[tuple[str, int, bool], float]] = {}
    for label, record in summary.labelled_records(records):
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
    """Return a cell of the order test: the number, and whether the model sees order."""
    if value is None:
        return {"blind": None, "text": summary.DASH, "value": ""}
    text = f"{value:.0e}" if value < 0.01 else f"{value:.2g}"
    return {"blind": value < BLIND, "text": "blind" if value < BLIND else "sees order", "value": text}


def headline_of(records: Sequence[Record], draw: Drawer) -> dict[str, Any] | None:
    """Return the figure beside the answer: learning speed against reach."""
    caption = (
        "Quick encodings stand to the left, those that carry far at the top. Symbols: medians; bars: their intervals. "
        "Reach: the longest tested length, over the trained one, up to which at least "
        f"{summary.percent(summary.CARRY_THRESHOLD)} % of answers are right."
    )
    if not any(result.learned and not result.is_text for result in summary.results(records)):
        return None
    if any(not result.learned for result in summary.results(records)):
        caption += " Encodings of which no seed learned the task are named below the axis."
    return figure_context(draw, "headline", caption, records)


def pictures_of(records: Sequence[Record], draw: Drawer) -> list[dict[str, Any]]:
    rows = " Rows below the dashed line were never trained." * figures.exceeds_training(records, "added")
    unseen = " Right of the dashed line are distances that training never showed."
    distances = unseen * figures.exceeds_training(records, "bias")
    captions = {
        "added": f"One row a position, one column a channel, after training.{rows}",
        "wavelengths": "Positions that a pair of channels needs for one full turn, fastest pair first.",
        "similarity": "For what is added: the cosine between every two positions. For rotary: the mean over pairs of "
        "the cosine of the turn between two positions. It rises and falls; nothing makes it fall steadily with "
        "distance.",
        "bias": f"What each head adds to the logit of a key at a distance.{distances}",
    }
    contexts = [figure_context(draw, kind, caption, records) for kind, caption in captions.items()]
    return [figure for figure in contexts if figure]


def attention_of(records: Sequence[Record], draw: Drawer) -> list[dict[str, Any]]:
    """Return for each task the attention maps of one trained model of each encoding."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    runs = ((result, sections.attention_run(result)) for result in summary.results(records))
    for result, run in islice(((result, run) for result, run in runs if run), MAX_ATTENTION_FIGURES):
        caption = "" if result.learned else "This model did not learn the task, so its maps explain nothing."
        context = figure_context(draw, "attention", caption, run, name=f"attention-{result.task}-{result.label}")
        if context:
            figure = {**context, "label": result.label, "learned": bool(result.learned)}
            by_task.setdefault(result.task, []).append(figure)
    return [{"task": task, "figures": drawings} for task, drawings in by_task.items()]
