"""The record of an extension to a page and to Markdown: the tables, the curves, what it cost, and how it was made."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posenc.checkpoints.extension import choice
from posenc.checkpoints.extension.choice import digits, first, value
from posenc.checkpoints.measures import memory
from posenc.checkpoints.measures.measure import Value
from posenc.foreign.text import markdown as escaped
from posenc.foreign.text import markdown_code
from posenc.lab import store
from posenc.lab.results import figures, summary
from posenc.lab.results.drawer import Drawer
from posenc.lab.results.figures.layout import grid_of, handle, legend
from posenc.lab.results.summary import duration
from posenc.lab.results.tables import as_markdown
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
    drawer = Drawer(store.inside(folder, "figures"))
    figure = drawer("by-length", partial(by_length, record), CAPTION, "Every method by length, as in the tables")
    pictures = [] if figure is None else [figure]
    store.write(folder / "report.md", markdown(record, pictures).encode())
    store.write(folder / "report.html", page(record, pictures).encode())
    return folder / "report.html"


def values_of(entry: Record, measure: Record) -> dict[tuple[str, int], Value]:
    """What a method has of a measure: by number and length."""
    return {
        (row["number"], row["length"]): Value(row["value"], row["error"])
        for row in entry["values"]
        if row["measure"] == measure["name"]
    }


def lengths_of(record: Record, measure: Record) -> list[int]:
    return sorted({length for entry in record["methods"] for _, length in values_of(entry, measure)})


def table(record: Record, measure: Record, lengths: Sequence[int] | None = None) -> Table:
    """The numbers of each method at each length, with their errors: headers and rows."""
    lengths = lengths_of(record, measure) if lengths is None else lengths
    columns = [(number["name"], length) for number in measure["numbers"] for length in lengths]
    methods = [(entry["name"], values_of(entry, measure)) for entry in record["methods"]]
    rows = [[name, *(cell(values.get(column)) for column in columns)] for name, values in methods if values]
    return ["method", *(f"{name} at {length:,}" for name, length in columns)], rows


def in_short(record: Record) -> list[tuple[str, Table]]:
    """The tables for a terminal, with their captions: the trained length and the target alone."""
    ends = [record["trained"], record["target"]]
    tables = [(numbers_in_words(measure), table(record, measure, ends)) for measure in record["measures"]]
    return [(caption, content) for caption, content in tables if content[1]]


def numbers_in_words(measure: Record) -> str:
    """What the numbers of a measure are, which way is better, and what guessing gives."""
    parts = []
    for number in measure["numbers"]:
        guess = "" if number["chance"] is None else f", {digits(number['chance'])} by guessing"
        parts.append(
            f"{number['name']}: {number['words']} ({'more' if number['more_is_better'] else 'less'} is better{guess})"
        )
    return "; ".join(parts) + "."


def cost(record: Record) -> Table:
    """What the longest pass costs each method, and how its checkpoint is had: headers and rows."""
    headers = ["method", "tokens/s", "seconds", "CPU seconds", "peak MiB", "checkpoint"]
    rows = []
    for entry in record["methods"]:
        numbers = [entry["per_second"], entry["seconds"], entry["cpu_seconds"], entry["peak_mib"]]
        as_it_is = entry["name"] == "none" or entry["baseline"]
        how = "as it is" if as_it_is else "config" if entry["config"] is not None else "attach only"
        cells = ("" if n is None else f"{n:,.0f}" if n >= 10 else f"{n:.2g}" for n in numbers)
        rows.append([entry["name"], *cells, how])
    return headers, rows


def cell(value: Value | None) -> str:
    """A number as a table has it, or nothing."""
    return "" if value is None or value.value is None else choice.shown(value)


def sentences(record: Record) -> list[str]:
    """All that is said of a run, a paragraph each."""
    checkpoint, plan = record["written"], list[str]()
    if record.get("plan"):
        peaks = [entry["peak_mib"] for entry in record["methods"] if entry["peak_mib"] is not None]
        words = [f"The largest peak that was measured is {memory.size(max(peaks) * 2**20)}."] if peaks else []
        plan = [" ".join([*memory.sentences(record["plan"]), *words])]
    subject = f"The extended checkpoint ({checkpoint['method']}): " if checkpoint["path"] else ""
    return [
        *filter(None, (record["in_words"], record["stretch"], record["price"])),
        f"{subject}{checkpoint['words']}",
        *(task["words"] for task in record["further"]),
        *(f"Left out, {name}: {why}." for name, why in record["left_out"].items()),
        *plan,
    ]


@figures.styled
def by_length(record: Record) -> Figure | None:
    """Each number against the length, and perplexity against the position: a panel each, a line for each method."""
    # A number that only one method has at several lengths is no comparison.
    numbers = [
        (measure, number)
        for measure in filter(partial(drawable, record), record["measures"])
        for number in measure["numbers"]
    ]
    curves = any(entry["curve"] for entry in record["methods"])
    if not (count := len(numbers) + curves):
        return None
    on = grid_of(count, 2, (4.6, 3.6), f"{title(record).partition(':')[0]}, by tokens")
    lines = [(figures.look(place), f"encoding-{place}", entry) for place, entry in enumerate(record["methods"])]
    for ax, (measure, number) in zip(on.axes, numbers, strict=False):
        lengths = lengths_of(record, measure)
        for look, group, entry in lines:
            values = values_of(entry, measure)
            at = {length: values[number["name"], length] for length in lengths if (number["name"], length) in values}
            ys = summary.numbers([value.value for value in at.values()])
            errors = summary.numbers([value.error or 0.0 for value in at.values()])
            style: dict[str, Any] = {"color": look.color, "linestyle": look.dashes, "marker": look.marker}
            ax.errorbar(list(at), ys, errors, elinewidth=0.8, **style)[0].set_gid(group)
        finish(ax, record, number["words"], log=not number["more_is_better"])
        ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    for ax in on.axes[len(numbers) :]:
        for look, group, entry in lines:
            if entry["curve"]:
                at, values = map(summary.numbers, entry["curve"])
                ax.plot(at, values, color=look.color, linestyle=look.dashes, linewidth=1.3)[0].set_gid(group)
        finish(ax, record, "Perplexity of the tokens around each position", log=True)
        ax.xaxis.set_major_formatter("{x:,.0f}")
    legend(on.figure, [handle(entry["name"], look) for look, _, entry in lines], columns=6)
    return on.figure


def drawable(record: Record, measure: Record) -> bool:
    """Whether a measure was asked at several lengths of more than one method."""
    counts = [len({length for _, length in values_of(entry, measure)}) for entry in record["methods"]]
    return sum(count > 1 for count in counts) > 1


def finish(ax: Any, record: Record, ylabel: str, *, log: bool) -> None:
    if log:
        ax.set_yscale("log")
        figures.plain_log(ax.yaxis)
    figures.mark_trained(ax, [record["trained"]])
    ax.set(xlabel="tokens", ylabel=figures.wrapped(ylabel, 4))


def tables(record: Record) -> list[tuple[str, str, Table]]:
    """All tables, with their captions and what else is said of them."""
    rows = [(measure["name"], numbers_in_words(measure), table(record, measure)) for measure in record["measures"]]
    rows.append(("What the pass at the longest length costs", "", cost(record)))
    if record.get("plan"):
        rows.append(("What was planned for a pass", "", memory.table(record["plan"])))
    return [row for row in rows if row[2][1]]


def markdown(record: Record, pictures: Sequence[Mapping[str, Any]]) -> str:
    """The run as a page of Markdown."""
    parts = [f"# {escaped(title(record))}", *map(escaped, sentences(record))]
    for caption, words, (headers, rows) in tables(record):
        cells = [list(map(escaped, row)) for row in (headers, *rows)]
        parts += [f"{escaped(words.rstrip('.') or caption)}:", as_markdown(cells[0], cells[1:])]
    parts += [f"![{escaped(figure['says'])}](figures/{figure['name']}.png)" for figure in pictures]
    lines = [
        (entry["name"], f"{escaped(entry['words'])}: {markdown_code(entry['spec'])}") for entry in record["methods"]
    ]
    parts += ["## The methods", "\n".join(f"- {escaped(name)}: {words}" for name, words in lines)]
    facts = record["made"].items()
    lines = [(name, (markdown_code if name == "command" else escaped)(text)) for name, text in facts]
    parts += ["## How it was made", "\n".join(f"- {escaped(name)}: {words}" for name, words in lines)]
    return "\n\n".join(parts) + "\n"


def title(record: Record) -> str:
    name = Path(record["model"]).name
    return f"{name}: from {record['trained']:,} to {record['target']:,} tokens"


def page(record: Record, pictures: Sequence[Mapping[str, Any]]) -> str:
    """The run as an HTML page that needs nothing beside it."""
    number, methods = first(record), record["methods"]
    best = next(entry for entry in methods if entry["name"] == record["winner"])
    before, after = (cell(value(entry, record, record["target"])) or "none" for entry in (methods[0], best))
    facts = [
        ("trained to, tokens", f"{record['trained']:,}"),
        ("extended to, tokens", f"{record['target']:,}"),
        ("methods", str(len(methods) - 1)),
        (f"{number['name']} before", before),
        (f"{number['name']} after", after),
        ("for the longest passes", duration(sum(entry["seconds"] for entry in methods))),
    ]
    looks = [(entry["name"], figures.look(n), entry["spec"], entry["words"]) for n, entry in enumerate(methods)]
    origin = [(name, f"`{text}`" if name == "command" else text) for name, text in record["made"].items()]
    return template(TEMPLATE).render(
        title=title(record),
        facts=facts,
        sentences=sentences(record),
        tables=tables(record),
        figures=pictures,
        looks=looks,
        winner=record["winner"],
        origin=origin,
    )
