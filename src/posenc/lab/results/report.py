"""Records to a page: one HTML file that needs nothing beside it, the figures as files, and the records in one list.

The numbers and sentences come from `summary`, the drawings from `figures`; here they are only put in order.
"""

import html
import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
from markupsafe import Markup

import posenc
from posenc.foreign import visible
from posenc.lab import store
from posenc.lab.evaluation.order import BLIND
from posenc.lab.results import figures, in_words, sections, statistics, summary
from posenc.lab.results.drawer import Drawer, Files
from posenc.lab.results.provenance import MOST_OF_A_VALUE, how_it_was_made, not_measured, readable, total
from posenc.lab.results.summary import Record, answer, get, number, table, tasks
from posenc.lab.runs import index
from posenc.lab.runs.record import told_apart
from posenc.lab.views import page

__all__ = ["answer", "table", "tasks", "write"]

TEMPLATE = Path(__file__).with_name("report.html.jinja")
# Attention maps in the page, over all tasks; more would make it slow to open. The rest stay in data.json.
MOST_ATTENTION = 48
# Keys that are listed one by one.
MOST_KEYS = 400


def write(
    records: list[Record],
    folder: Path,
    settings: dict[str, Any] | None = None,
    failures: Sequence[str] = (),
    files: Files | None = None,
    shown: summary.Settled | None = None,
) -> Path:
    """Write report.html, data.json and the files of the figures into the folder, and return the path of the page.

    failures   runs that have no record, and why, in words
    files      how the files of the figures are to be; default: figures/*.png, as in the page
    shown      the records as people are shown them, where others need them too; default: `summary.shown` of them

    Every file is put in place whole. data.json holds the records as given, except that NaN and infinities, which JSON
    does not have, become null.

    Raises ValueError for an empty list, and where the folder of its figures is a link to elsewhere.
    """
    summary.need_records(records)
    folder = Path(folder)
    drawer = Drawer(store.inside(folder, "figures"), files)
    failed = summary.legible(failures, summary.MOST_OF_A_SENTENCE)
    text = render(shown or summary.shown(records), summary.legible(settings or {}), failed, drawer)
    store.write(folder / "data.json", as_json(records).encode())
    store.write(folder / "report.html", text.encode())
    return folder / "report.html"


def as_json(records: list[Record]) -> str:
    """The records as JSON, which is strict."""
    strictly = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return strictly(records)
    except (ValueError, TypeError):
        return strictly(finite(records))


def finite(value: Any) -> Any:
    """The value with null in place of every number that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    return (
        [finite(inner) for inner in value]
        if isinstance(value, (list, tuple))
        else value
        if json_knows(value)
        else str(value)
    )


def json_knows(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, bool))


def sentence(text: str) -> Markup:
    """Plain words to HTML: escaped, with names between backticks set as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(visible(text))))


def pages(*folders: Path) -> jinja2.Environment:
    """Templates of pages that show whatever text they are given letter by letter."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Markup is a string too, and is no text.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["sentence"] = sentence
    environment.filters["short"] = figures.short
    palette: dict[str, Any] = {
        "colours": len(figures.LIGHT),
        "light": [*figures.LIGHT, *figures.RAMP],
        "dark": [*figures.DARK, *figures.RAMP_DARK],
    }
    environment.globals.update(palette)
    return environment


def render(records: Sequence[Record], settings: dict[str, Any], failures: Sequence[str], draw: Drawer) -> str:
    paragraphs = summary.paragraphs(records)
    return (
        pages(TEMPLATE.parent)
        .get_template(TEMPLATE.name)
        .render(
            looks=figures.looks(records),
            overall=paragraphs[0],
            answers=paragraphs[1:],
            facts=facts(records),
            tables=[table_of(records, task) for task in tasks(records)],
            headline=headline_of(records, draw),
            curves=[curves_of(records, task, draw) for task in tasks(records)],
            order=order_of(records),
            pictures=pictures_of(records, draw),
            attention=attention_of(records, draw),
            numbers=page.numbers(to_touch(records)),
            script=page.script(),
            made=how_it_was_made(records),
            settings=[(name, summary.legible(readable(value), MOST_OF_A_VALUE)) for name, value in settings.items()],
            unmeasured=[*(f"Failed: {words}" for words in failures), *not_measured(records)],
            apart=told_apart(records),
            keys=[str(key) for run in records if (key := get(run, "key"))][:MOST_KEYS],
            left_out=max(0, len(records) - MOST_KEYS),
            carries=summary.percent(summary.CARRIES),
            falls_apart=summary.percent(summary.FALLS_APART),
            level=summary.percent(statistics.LEVEL),
            power=summary.percent(statistics.POWER),
        )
    )


def to_touch(records: Sequence[Record]) -> dict[str, Any]:
    """What the views that move in the page are given."""
    return {
        "schema": page.SCHEMA,
        "version": posenc.__version__,
        "command": "posenc report",
        "title": "posenc report",
        "encodings": [],
        "sections": sections.of(records),
    }


def facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The size of the comparison in a few numbers."""
    found = summary.results(records)
    seeds = sorted({len(result.runs) for result in found})
    parameters = [x for run in records if (x := number(get(run, "parameters", "model"))) is not None]
    out = [
        ("encodings" if len(summary.labels(records)) > 1 else "encoding", str(len(summary.labels(records)))),
        ("tasks" if len(tasks(records)) > 1 else "task", str(len(tasks(records)))),
        (
            "seeds each" if seeds != [1] else "seed each",
            str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        ),
        ("runs" if len(records) > 1 else "run", str(len(records))),
        ("of CPU time", summary.duration(total(records, "cpu_s"))),
    ]
    return out + ([("parameters a model", f"{median(parameters):,.0f}")] if parameters else [])


def table_of(records: Sequence[Record], task: str) -> dict[str, Any]:
    columns, rows = summary.task_table(records, task)
    groups: list[list[Any]] = []
    for column in columns:
        if groups and column.group and groups[-1][0] == column.group:
            groups[-1][1] += 1
        else:
            groups.append([column.group, 1])
    return {
        "task": task,
        "columns": columns,
        "groups": groups,
        "grouped": any(name for name, _ in groups),
        "rows": rows,
        "meanings": {column.heading: column.meaning for column in columns if column.meaning},
        "wide": len(columns) > 10,
    }


def curves_of(records: Sequence[Record], task: str, draw: Drawer) -> dict[str, Any]:
    text = any(result.is_text for result in summary.results(records, task))
    trained = summary.trained_words(summary.results(records, task))
    beyond = (
        "Left: how many times larger perplexity is than at the trained length; a level line extrapolates. Right: bits "
        "per byte with sliding "
        "windows, where every byte has a full context, so that a longer window cannot win by having fewer bytes with "
        "little to look at."
        if text
        else f"Whole answers that are right, at lengths past {trained}. Encodings that did not learn the task have no "
        f"line: their score beyond "
        "the trained length would say nothing."
    )
    beyond += " Symbols: median over the seeds that learned; bars: its interval."
    learn = (
        "Lines are medians over the seeds, bands reach from the lowest to the highest."
        if any(len(r.runs) > 1 for r in summary.results(records, task))
        else "One run each."
    )
    learn = (
        f"{learn} The same curves against steps (left) and CPU seconds (right): an encoding may need few steps "
        f"and yet be slow."
    )
    lose = (
        "Positions of the trained model are taken away, shuffled, shifted by a constant, or swapped in two places, "
        "at the trained length. The tick is the intact score."
    )
    hidden = (
        "How often what is hidden is found, in percent: the place where it stands against the length of the text, the "
        "median over the seeds that learned. The first column is the trained length."
    )
    drawn = [
        draw(
            f"extrapolation-{task}",
            partial(figures.extrapolation, records, task),
            beyond,
            in_words.extrapolation(records, task),
        ),
        draw(f"learning-{task}", partial(figures.learning, records, task), learn, in_words.learning(records, task)),
        # They take a third of the time of all figures; where they are left out, `not_measured` says so.
        draw(f"ablation-{task}", partial(figures.ablation, records, task), lose, in_words.ablation(records, task))
        if len(records) <= index.MOST_WHOLE
        else None,
        draw(f"depths-{task}", partial(figures.depths, records, task), hidden, in_words.depths(records, task)),
    ]
    return {"task": task, "figures": [f for f in drawn if f], "said": ablation_in_words(records, task)}


def ablation_in_words(records: Sequence[Record], task: str) -> str:
    """Which encodings do not feel a shift, and which live on without their positions."""
    found = [r for r in summary.results(records, task) if r.learned and r.spread("ablation", "intact") is not None]
    if not found:
        return ""

    def unharmed(r: summary.Result, kind: str) -> bool:
        intact, damaged = r.spread("ablation", "intact"), r.spread("ablation", kind)
        assert intact is not None
        if damaged is None:
            return False
        return damaged.median <= intact.median + 0.02 if r.is_text else damaged.median >= intact.median - 0.02

    said = []
    for kind, words in (("shifted", "a shift of all positions"), ("removed", "losing its positions altogether")):
        measured = [r for r in found if r.spread("ablation", kind) is not None]
        same = [r for r in measured if unharmed(r, kind)]
        if measured and len(same) == len(measured):
            said.append(
                f"No encoding measured is harmed by {words}."
                if len(same) > 1
                else f"{summary.names_of(same)} is not harmed by {words}."
            )
        elif same:
            said.append(f"{summary.names_of(same)} {summary.ask('are', same)} not harmed by {words}.")
        elif measured:
            said.append(f"Every encoding measured is harmed by {words}.")
    return " ".join(said)


def order_entries(record: Record) -> Iterator[tuple[tuple[str, int, bool], float]]:
    """((attention, layers, with position), the number that the order test looks at)."""
    found = get(record, "order")
    for entry in found if isinstance(found, list) else []:
        attention, layers, position = get(entry, "attention"), get(entry, "layers"), get(entry, "position")
        value = number(get(entry, "equivariance" if attention == "bidirectional" else "difference"))
        if value is not None:
            yield (attention, layers, bool(position)), value


def order_of(records: Sequence[Record]) -> dict[str, Any] | None:
    """The order test: for each encoding and kind of attention, with and without position, whether order is seen."""
    rows: dict[str, dict[tuple[str, int, bool], float]] = {}
    for label, record in summary.labelled(records):
        for key, value in order_entries(record):
            rows.setdefault(label, {}).setdefault(key, value)
    if not rows:
        return None
    kinds = sorted({(attention, layers) for row in rows.values() for attention, layers, _ in row})
    columns = [(attention, layers, position) for attention, layers in kinds for position in (False, True)]

    def shown(value: float | None) -> dict[str, Any]:
        if value is None:
            return {"blind": None, "text": summary.NOTHING, "value": ""}
        blind = value < BLIND
        return {
            "blind": blind,
            "text": "blind" if blind else "sees order",
            "value": f"{value:.0e}" if value < 0.01 else f"{value:.2g}",
        }

    table_rows = [(label, [shown(row.get(column)) for column in columns]) for label, row in rows.items()]
    words = {("bidirectional", 1): "bidirectional"} | {
        ("causal", n): f"causal, {n} layer{'s' if n != 1 else ''}" for n in range(1, 9)
    }
    groups = [words.get(kind, f"{kind[0]}, {kind[1]} layers") for kind in kinds]
    return {"groups": groups, "rows": table_rows, "reading": order_reading(rows)}


def order_reading(rows: dict[str, dict[tuple[str, int, bool], float]]) -> str:
    """One sentence: what attention knows about order without a position, from the numbers and not from the book."""

    def all_of(attention: str, layers: int, blind: bool) -> bool | None:
        values = [row[attention, layers, False] for row in rows.values() if (attention, layers, False) in row]
        return all((value < BLIND) is blind for value in values) if values else None

    both, one, two = all_of("bidirectional", 1, True), all_of("causal", 1, True), all_of("causal", 2, False)
    said = []
    if both is not None:
        said.append(
            "attention in both directions is blind to order"
            if both
            else "attention in both directions was not blind to order in every model"
        )
    if one is not None:
        said.append(
            "one causal layer is blind to the order of what it has read"
            if one
            else "one causal layer was not blind to order in every model"
        )
    if two is not None:
        said.append(
            "two causal layers are not: the mask alone tells them something"
            if two
            else "two causal layers stayed blind in some model"
        )
    if not said:
        return "The order test was only run with position."
    return f"Without position, {summary.listed(said)}."


def headline_of(records: Sequence[Record], draw: Drawer) -> dict[str, Any] | None:
    """The figure beside the answer: learning speed against reach."""
    says = (
        "Quick encodings stand to the left, those that carry far at the top. Symbols: medians; bars: their intervals, "
        "of time over the seeds that learned, of reach over all. The reach is the multiple of the trained length up to "
        f"which at least {summary.percent(summary.CARRIES)} % of answers are right, of those that were tested."
    )
    if any(not result.learned for result in summary.results(records)):
        says += " At the right edge: encodings of which no seed learned the task."
    return draw("headline", partial(figures.headline, records), says, in_words.headline(records))


def pictures_of(records: Sequence[Record], draw: Drawer) -> list[dict[str, Any]]:
    untrained = " Rows below the dashed line were never trained." if figures.goes_past(records, "added") else ""
    unseen = (
        " Right of the dashed line are distances that training never showed."
        if figures.goes_past(records, "bias")
        else ""
    )
    drawn = [
        draw(
            "added",
            partial(figures.added, records),
            f"One row a position, one column a channel, after training.{untrained}",
            in_words.added(records),
        ),
        draw(
            "wavelengths",
            partial(figures.wavelengths, records),
            wavelengths_in_words(records),
            in_words.wavelengths(records),
        ),
        draw(
            "similarity",
            partial(figures.similarity, records),
            "For what is added: the cosine between every two positions. For rotary: the mean over pairs of the cosine "
            "of the turn between two positions. It rises and falls; nothing makes it fall steadily with distance.",
            in_words.similarity(records),
        ),
        draw(
            "bias",
            partial(figures.bias, records),
            f"What each head adds to the logit of a key at a distance.{unseen}",
            in_words.bias(records),
        ),
    ]
    return [figure for figure in drawn if figure]


def wavelengths_in_words(records: Sequence[Record]) -> str:
    said = ["Positions that a pair of channels needs for one full turn, fastest pair first."]
    for label, _, values in figures.pictured(records, "wavelengths")[:8]:
        known = figures.numbers(values)
        own = [r for r in summary.results(records) if r.label == label]
        never = [
            f"{int((known > length).sum())} within {summary.count(length)}" for length in summary.shown_positions(own)
        ]
        if never:
            said.append(
                f"{figures.short(label)}: of its {len(known)} pairs, those that never complete a turn are "
                f"{summary.listed(never)} positions."
            )
    return " ".join(said)


def attention_of(records: Sequence[Record], draw: Drawer) -> list[dict[str, Any]]:
    """For each task, the maps of one trained model of each encoding."""
    out, drawn = [], 0
    for task in tasks(records):
        shown_here = []
        for result in summary.results(records, task):
            if drawn >= MOST_ATTENTION:
                break
            shown = sections.telling(result)
            if shown is None:
                continue
            says = "" if result.learned else "This model did not learn the task, so its maps explain nothing."
            name = f"attention-{task}-{result.label}"
            made = draw(name, partial(figures.attention, shown), says, in_words.attention(shown))
            if made:
                drawn += 1
                shown_here.append({**made, "label": result.label, "learned": bool(result.learned)})
        if shown_here:
            out.append({"task": task, "figures": shown_here})
    return out
