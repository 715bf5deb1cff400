"""The report of an extension, as HTML and Markdown: tables, curves, costs, and provenance."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posenc.checkpoints.extension import choice
from posenc.checkpoints.extension.choice import deciding_number, format_number, value_at
from posenc.checkpoints.measures import memory
from posenc.checkpoints.measures.measure import Value
from posenc.foreign.text import escape_markdown as escape
from posenc.foreign.text import markdown_code
from posenc.lab import store
from posenc.lab.results import figures, summary
from posenc.lab.results.drawer import Drawer
from posenc.lab.results.figures.layout import legend, legend_handle, panel_grid
from posenc.lab.results.summary import duration
from posenc.lab.results.tables import markdown_table
from posenc.lab.views.page import template

TEMPLATE = Path(__file__).with_name("report.html.jinja")

CAPTION = (
    "Every method by length, and around each position where a measure says that; all read the same input. A dashed "
    "line marks the trained length; bars are standard errors. The tables have the numbers."
)

Record = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]


def write(record: Record, folder: Path) -> Path:
    """Write report.html, report.md and figures/*.png into the folder, each whole, and return the path of the page."""
    drawer = Drawer(store.subfolder(folder, "figures"))
    figure = drawer("by-length", partial(draw_by_length, record), CAPTION, "Every method by length, as in the tables")
    pictures = [] if figure is None else [figure]
    store.write(folder / "report.md", markdown(record, pictures).encode())
    store.write(folder / "report.html", page(record, pictures).encode())
    return folder / "report.html"


def values_by_length(entry: Record, measure: Record) -> dict[tuple[str, int], Value]:
    """Return a method's values of a measure, by number and length."""
    return {
        (row["number"], row["length"]): Value(row["value"], row["error"])
        for row in entry["values"]
        if row["measure"] == measure["name"]
    }


def measured_lengths(record: Record, measure: Record) -> list[int]:
    return sorted({length for entry in record["methods"] for _, length in values_by_length(entry, measure)})


def value_table(record: Record, measure: Record, lengths: Sequence[int] | None = None) -> Table:
    """Return a table of each method's numbers at each length, with their errors: headers and rows."""
    lengths = measured_lengths(record, measure) if lengths is None else lengths
    columns = [(number["name"], length) for number in measure["numbers"] for length in lengths]
    methods = [(entry["name"], values_by_length(entry, measure)) for entry in record["methods"]]
    rows = [[name, *(format_cell(values.get(column)) for column in columns)] for name, values in methods if values]
    return ["method", *(f"{name} at {length:,}" for name, length in columns)], rows


def short_tables(record: Record) -> list[tuple[str, Table]]:
    """Return the tables for a terminal, with their captions: the trained length and the target alone."""
    ends = [record["trained"], record["target"]]
    tables = [(describe_numbers(measure), value_table(record, measure, ends)) for measure in record["measures"]]
    return [(caption, content) for caption, content in tables if content[1]]


def describe_numbers(measure: Record) -> str:
    """Describe the numbers of a measure: their meaning, which way is better, and their value by guessing."""
    parts = []
    for number in measure["numbers"]:
        guess = "" if number["chance"] is None else f", {format_number(number['chance'])} by guessing"
        parts.append(
            f"{number['name']}: {number['words']} ({'more' if number['more_is_better'] else 'less'} is better{guess})"
        )
    return "; ".join(parts) + "."


def cost_table(record: Record) -> Table:
    """Return headers and rows: the cost of each method's longest pass, and its kind of checkpoint."""
    headers = ["method", "tokens/s", "seconds", "CPU seconds", "peak MiB", "checkpoint"]
    rows = []
    for entry in record["methods"]:
        numbers = [entry["per_second"], entry["seconds"], entry["cpu_seconds"], entry["peak_mib"]]
        as_it_is = entry["name"] == "none" or entry["baseline"]
        how = "as it is" if as_it_is else "config" if entry["config"] is not None else "attach only"
        cells = ("" if n is None else f"{n:,.0f}" if n >= 10 else f"{n:.2g}" for n in numbers)
        rows.append([entry["name"], *cells, how])
    return headers, rows


def format_cell(value: Value | None) -> str:
    """Return a value as the text of a table cell, or ""."""
    return "" if value is None or value.value is None else choice.format_value(value)


def summary_sentences(record: Record) -> list[str]:
    """Return the sentences about a run, one paragraph each."""
    checkpoint, plan = record["written"], list[str]()
    if record.get("plan"):
        peaks = [entry["peak_mib"] for entry in record["methods"] if entry["peak_mib"] is not None]
        words = [f"The largest peak that was measured is {memory.format_bytes(max(peaks) * 2**20)}."] if peaks else []
        plan = [" ".join([*memory.plan_sentences(record["plan"]), *words])]
    subject = f"The extended checkpoint ({checkpoint['method']}): " if checkpoint["path"] else ""
    return [
        *filter(None, (record["in_words"], record["stretch"], record["price"])),
        f"{subject}{checkpoint['words']}",
        *(task["words"] for task in record["further"]),
        *(f"Left out, {name}: {why}." for name, why in record["left_out"].items()),
        *plan,
    ]


@figures.styled
def draw_by_length(record: Record) -> Figure | None:
    """Draw each number by length, and perplexity by position: one panel each, with a line for each method."""
    # A number that only one method has at several lengths is no comparison.
    numbers = [
        (measure, number)
        for measure in filter(partial(has_curves, record), record["measures"])
        for number in measure["numbers"]
    ]
    curves = any(entry["curve"] for entry in record["methods"])
    if not (count := len(numbers) + curves):
        return None
    grid = panel_grid(count, 2, (4.6, 3.6), f"{title(record).partition(':')[0]}, by tokens")
    lines = [(figures.look(place), f"encoding-{place}", entry) for place, entry in enumerate(record["methods"])]
    for ax, (measure, number) in zip(grid.axes, numbers, strict=False):
        lengths = measured_lengths(record, measure)
        for look, group, entry in lines:
            values = values_by_length(entry, measure)
            at = {length: values[number["name"], length] for length in lengths if (number["name"], length) in values}
            ys = summary.float_array([value.value for value in at.values()])
            errors = summary.float_array([value.error or 0.0 for value in at.values()])
            style: dict[str, Any] = {"color": look.color, "linestyle": look.dashes, "marker": look.marker}
            ax.errorbar(list(at), ys, errors, elinewidth=0.8, **style)[0].set_gid(group)
        finish_axes(ax, record, number["words"], log=not number["more_is_better"])
        ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    for ax in grid.axes[len(numbers) :]:
        for look, group, entry in lines:
            if entry["curve"]:
                at, values = map(summary.float_array, entry["curve"])
                ax.plot(at, values, color=look.color, linestyle=look.dashes, linewidth=1.3)[0].set_gid(group)
        finish_axes(ax, record, "Perplexity of the tokens around each position", log=True)
        ax.xaxis.set_major_formatter("{x:,.0f}")
    legend(grid.figure, [legend_handle(entry["name"], look) for look, _, entry in lines], columns=6)
    return grid.figure


def has_curves(record: Record, measure: Record) -> bool:
    """Whether more than one method has values of a measure at several lengths."""
    counts = [len({length for _, length in values_by_length(entry, measure)}) for entry in record["methods"]]
    return sum(count > 1 for count in counts) > 1


def finish_axes(ax: Axes, record: Record, ylabel: str, *, log: bool) -> None:
    if log:
        ax.set_yscale("log")
        figures.plain_log(ax.yaxis)
    figures.mark_trained(ax, [record["trained"]])
    ax.set(xlabel="tokens", ylabel=figures.wrap_title(ylabel, 4))


def all_tables(record: Record) -> list[tuple[str, str, Table]]:
    """Return all tables, with their captions and sentences."""
    measures = record["measures"]
    rows = [(measure["name"], describe_numbers(measure), value_table(record, measure)) for measure in measures]
    rows.append(("What the pass at the longest length costs", "", cost_table(record)))
    if record.get("plan"):
        rows.append(("What was planned for a pass", "", memory.memory_table(record["plan"])))
    return [row for row in rows if row[2][1]]


def markdown(record: Record, pictures: Sequence[Mapping[str, Any]]) -> str:
    """Return the report as Markdown."""
    parts = [f"# {escape(title(record))}", *map(escape, summary_sentences(record))]
    for caption, words, (headers, rows) in all_tables(record):
        cells = [list(map(escape, row)) for row in (headers, *rows)]
        parts += [f"{escape(words.rstrip('.') or caption)}:", markdown_table(cells[0], cells[1:])]
    parts += [f"![{escape(figure['says'])}](figures/{figure['name']}.png)" for figure in pictures]
    lines = [
        (entry["name"], f"{escape(entry['words'])}: {markdown_code(entry['spec'])}") for entry in record["methods"]
    ]
    parts += ["## The methods", "\n".join(f"- {escape(name)}: {words}" for name, words in lines)]
    facts = record["made"].items()
    lines = [(name, (markdown_code if name == "command" else escape)(text)) for name, text in facts]
    parts += ["## How it was made", "\n".join(f"- {escape(name)}: {words}" for name, words in lines)]
    return "\n\n".join(parts) + "\n"


def title(record: Record) -> str:
    name = Path(record["model"]).name
    return f"{name}: from {record['trained']:,} to {record['target']:,} tokens"


def page(record: Record, pictures: Sequence[Mapping[str, Any]]) -> str:
    """Return the report as an HTML page without other files."""
    number, methods, target = deciding_number(record), record["methods"], record["target"]
    best = next(entry for entry in methods if entry["name"] == record["winner"])
    old, new = (format_cell(value_at(entry, record, target)) or "none" for entry in (methods[0], best))
    facts = [
        ("trained to, tokens", f"{record['trained']:,}"),
        ("extended to, tokens", f"{record['target']:,}"),
        ("methods", str(len(methods) - 1)),
        (f"{number['name']} before", old),
        (f"{number['name']} after", new),
        ("for the longest passes", duration(sum(entry["seconds"] for entry in methods))),
    ]
    looks = [(entry["name"], figures.look(n), entry["spec"], entry["words"]) for n, entry in enumerate(methods)]
    origin = [(name, f"`{text}`" if name == "command" else text) for name, text in record["made"].items()]
    return template(TEMPLATE).render(
        title=title(record),
        facts=facts,
        sentences=summary_sentences(record),
        tables=all_tables(record),
        figures=pictures,
        looks=looks,
        winner=record["winner"],
        origin=origin,
    )
