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

from posenc.foreign import visible
from posenc.lab import figures, statistics, store, summary
from posenc.lab.drawer import Drawer, Files
from posenc.lab.record import told_apart
from posenc.lab.summary import Record, answer, get, number, table, tasks

__all__ = ["answer", "table", "tasks", "write"]

TEMPLATE = Path(__file__).with_name("report.html.jinja")
# An untrained float64 model that differs by less than this does not see order.
ORDER_BLIND = 1e-9
# Attention maps in the page, over all tasks; more would make it slow to open. The rest stay in data.json.
MOST_ATTENTION = 48
# Letters of a setting, or of what runs have in common, however many values it lists.
MOST_OF_A_VALUE = 4_000
# Keys that are listed one by one.
MOST_KEYS = 400


def write(
    records: list[Record],
    folder: Path,
    settings: dict[str, Any] | None = None,
    failures: Sequence[str] = (),
    files: Files | None = None,
) -> Path:
    """Write report.html, data.json and the files of the figures into the folder, and return the path of the page.

    failures   runs that have no record, and why, in words
    files      how the files of the figures are to be; default: figures/*.png, as in the page

    Every file is put in place whole. data.json holds the records as given, except that NaN and infinities, which JSON
    does not have, become null.

    Raises ValueError for an empty list, and where the folder of its figures is a link to elsewhere.
    """
    summary.need_records(records)
    folder = Path(folder)
    drawer = Drawer(store.inside(folder, "figures"), files)
    failed = summary.legible(failures, summary.MOST_OF_A_SENTENCE)
    page = render(summary.legible(records), summary.legible(settings or {}), failed, drawer)
    data = json.dumps(finite(records), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    store.write(folder / "data.json", data.encode())
    store.write(folder / "report.html", page.encode())
    return folder / "report.html"


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
    return environment


def render(records: Sequence[Record], settings: dict[str, Any], failures: Sequence[str], draw: Drawer) -> str:
    paragraphs = summary.paragraphs(records)
    return (
        pages(TEMPLATE.parent)
        .get_template(TEMPLATE.name)
        .render(
            light=figures.LIGHT,
            dark=figures.DARK,
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


def readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {readable(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(readable, value))
    return (
        {None: summary.NOTHING, True: "yes", False: "no"}.get(value, str(value))
        if value is None or isinstance(value, bool)
        else str(value)
    )


def total(records: Sequence[Record], key: str) -> float:
    return sum(x for run in records if (x := number(get(run, key))) is not None and math.isfinite(x))


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
    beyond += (
        " Symbols: median over the seeds that learned; bars: its interval. Each encoding stands a "
        "little to the side, so that equal ones can be seen."
    )
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
    drawn = [
        draw(f"extrapolation-{task}", partial(figures.extrapolation, records, task), beyond),
        draw(f"learning-{task}", partial(figures.learning, records, task), learn),
        draw(f"ablation-{task}", partial(figures.ablation, records, task), lose),
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
        blind = value < ORDER_BLIND
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
        return all((value < ORDER_BLIND) is blind for value in values) if values else None

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
        f"which at least {summary.percent(summary.CARRIES)} % of answers are right, of those that were tested. Equal "
        "reaches stand a little apart, so that all can be seen."
    )
    if any(not result.learned for result in summary.results(records)):
        says += " At the right edge: encodings of which no seed learned the task."
    return draw("headline", partial(figures.headline, records), says)


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
            f"One row a position, one column a dimension, after training.{untrained}",
        ),
        draw("wavelengths", partial(figures.wavelengths, records), wavelengths_in_words(records)),
        draw(
            "similarity",
            partial(figures.similarity, records),
            "For what is added: the cosine between every two positions. For rotary: the mean over pairs of the cosine "
            "of the turn between two positions. It rises and falls; nothing makes it fall steadily with distance.",
        ),
        draw(
            "bias",
            partial(figures.bias, records),
            f"What each head adds to the logit of a key at a distance.{unseen}",
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
            shown = next((run for run in [*result.learned, *result.runs] if get(run, "attention")), None)
            if shown is None:
                continue
            says = "" if result.learned else "This model did not learn the task, so its maps explain nothing."
            made = draw(f"attention-{task}-{result.label}", partial(figures.attention, shown), says)
            if made:
                drawn += 1
                shown_here.append({**made, "label": result.label, "learned": bool(result.learned)})
        if shown_here:
            out.append({"task": task, "figures": shown_here})
    return out


def how_it_was_made(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the runs have in common, and where they differ."""

    def all_values(*path: str) -> str:
        values = dict.fromkeys(readable(value) for run in records if (value := get(run, *path)) is not None)
        return ", ".join(list(values)[:12]) + (f" and {len(values) - 12} more" if len(values) > 12 else "")

    out = [
        ("runs", str(len(records))),
        ("CPU time", f"{total(records, 'cpu_s'):,.0f} s, of which training {total(records, 'train_cpu_s'):,.0f} s"),
        ("wall time, runs added up", f"{total(records, 'wall_s'):,.0f} s"),
    ]
    versions = dict.fromkeys(name for run in records for name in (get(run, "versions") or {}))
    out += [(name, all_values("versions", name)) for name in versions]
    for text in {json.dumps(t, sort_keys=True, default=str): t for run in records if (t := get(run, "text"))}.values():
        out.append(("text", readable(text)))
    names = dict.fromkeys(name for run in records for name in (get(run, "experiment") or {}))
    for name in names:
        if name in ("spec", "task"):
            continue
        by_task = {
            task: all_values_of([r for r in records if summary.task_of(r) == task], name) for task in tasks(records)
        }
        different = len(set(by_task.values())) > 1
        words = (
            "; ".join(f"{task}: {value or summary.NOTHING}" for task, value in by_task.items())
            if different
            else next(iter(by_task.values()))
        )
        out.append((name.replace("_", " "), words))
    built = {summary.spec_of(run): str(get(run, "encoding")) for run in records if get(run, "encoding")}
    out += [
        (
            "built",
            "; ".join(dict.fromkeys(spec if spec == full else f"{spec} as {full}" for spec, full in built.items())),
        )
    ]
    return [(name, summary.legible(value, MOST_OF_A_VALUE)) for name, value in out if value]


def all_values_of(records: Sequence[Record], name: str) -> str:
    values = dict.fromkeys(readable(value) for run in records if (value := get(run, "experiment", name)) is not None)
    return " or ".join(values) if len(values) < 4 else ", ".join(values)


def not_measured(records: Sequence[Record]) -> list[str]:
    """What a reader might look for and the records do not have."""
    out = []
    found = summary.results(records)
    if not any(result.is_text for result in found):
        out.append("Text: no language model was trained, so nothing is said about prediction.")
    if all(result.is_text for result in found):
        out.append("Exact tasks: only text was used, so nothing is said about copying or looking things up.")
    few = min(len(result.runs) for result in found)
    if few < statistics.FEWEST:
        out.append(
            f"The spread over seeds: some results rest on {'one seed' if few == 1 else 'two seeds'}; three are the "
            f"least for a claim."
        )
    labels = summary.labels(records)
    for task in tasks(records):
        absent = [label for label in labels if label not in {r.label for r in summary.results(records, task)}]
        if absent:
            out.append(f"{task} with {summary.listed([summary.name(x) for x in absent])}.")
    short = [r for r in found if not any(factor and factor > 1 for _, factor in r.lengths())]
    if short:
        out.append(
            f"Lengths beyond the trained one: "
            f"{summary.listed([f'{summary.name(r.label)} on {r.task}' for r in short[:8]])}."
        )
    undone = {}
    for label, run in summary.labelled(records):
        ablated = get(run, "ablation")
        if isinstance(ablated, dict):
            for kind in figures.ABLATIONS:
                if number(get(ablated, kind)) is None:
                    undone.setdefault(kind, dict.fromkeys([label]))[label] = None
    out += [
        f"Ablation '{figures.ABLATIONS[kind]}': not done for {summary.listed([summary.name(x) for x in who])}."
        for kind, who in undone.items()
    ]
    for key, words in (("ablation", "Ablations"), ("order", "The order test"), ("attention", "Attention maps")):
        without = dict.fromkeys(label for label, run in summary.labelled(records) if not get(run, key))
        if without:
            whole = len(without) == len(labels) and all(not get(run, key) for run in records)
            out.append(
                f"{words}{'' if whole else ' in some runs of ' + summary.listed([summary.name(x) for x in without])}."
            )
    old = sum(summary.is_text(run) and get(run, "in_distribution", "context_gain") is None for run in records)
    if old:
        out.append(
            f"What the context saves: {old} of {len(records)} records are of an earlier version, which called a text "
            f"learned when its loss had stopped falling; delete them and run the comparison again."
        )
    wild = sum(has_wild(run) for run in records)
    if wild:
        out.append(f"{wild} of {len(records)} records hold NaN or infinite numbers; NaN counts as not measured.")
    return out


def has_wild(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(has_wild, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_wild, value))
