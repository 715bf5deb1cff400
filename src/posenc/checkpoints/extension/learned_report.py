"""The record of a learned table made longer, as a page of Markdown with its curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posenc.checkpoints.extension.extension_report import how, in_markdown
from posenc.foreign.text import markdown as shown
from posenc.foreign.text import markdown_code
from posenc.lab import store
from posenc.lab.results import figures

Record = Mapping[str, Any]


def write(record: Record, folder: Path) -> Path:
    """Write report.md and figures/by-length.png into the folder, each whole, and return the path of the page."""
    figures.save(by_length(record), store.inside(folder, "figures") / "by-length.png")
    store.write(folder / "report.md", markdown(record).encode())
    return folder / "report.md"


def values(record: Record, measure: str) -> dict[str, dict[int, float]]:
    """method -> length -> value of one measure."""
    found: dict[str, dict[int, float]] = {name: {} for name in record["methods"]}
    for entry in record["records"]:
        if entry["measure"] == measure:
            found[entry["method"]][entry["length"]] = entry["value"]
    return found


def table(record: Record, measure: str) -> tuple[list[str], list[list[str]]]:
    """One measure of every method at every length: headers and rows."""
    found = values(record, measure)
    lengths = sorted({length for of in found.values() for length in of})
    rows = [[name, *(f"{of[n]:.4g}" if n in of else "" for n in lengths)] for name, of in found.items()]
    return ["method", *(f"{length:,}" for length in lengths)], rows


def markdown(record: Record) -> str:
    """The run as a page of Markdown."""
    name = Path(record["model"]).name
    unit = record["unit"]
    title = f"{name}: from {record['trained']:,} to {record['target']:,} {unit}"
    parts = [f"# {shown(title)}", shown(record["in_words"])]
    if record["written"]:
        of = record["written"]
        where = markdown_code(of["path"])
        parts.append(f"The checkpoint with the table of {shown(of['method'])} is in {where}; transformers loads it.")
    for measure in record["measures"]:
        more = "more" if measure["more_is_better"] else "less"
        parts.append(f"{measure['words'][0].upper()}{measure['words'][1:]}, by {unit} ({more} is better):")
        parts.append(in_markdown(*table(record, measure["name"])))
    parts.append("![The measures by length, a line for each method](figures/by-length.png)")
    parts.append("\n".join(f"- {shown(name)}: {shown(words)}" for name, words in record["methods"].items()))
    parts += ["## How it was made", how(record)]
    return "\n\n".join(parts) + "\n"


@figures.styled
def by_length(record: Record) -> Figure:
    """Each measure against the length, a line for each method; a dashed line marks the trained length."""
    measures = record["measures"]
    fig, axes = figures.panels(len(measures), 2, 4.6, 3.6, f"{Path(record['model']).name}, by {record['unit']}")
    for ax, measure in zip(axes, measures, strict=True):
        found = values(record, measure["name"])
        for place, of in enumerate(found.values()):
            own, lengths = figures.look(place), sorted(of)
            ys = figures.numbers([of[length] for length in lengths])
            ax.plot(lengths, ys, color=own.color, linestyle=own.dashes, marker=own.marker)
        if not measure["more_is_better"]:
            ax.set_yscale("log")
            figures.plain_log(ax.yaxis)
        figures.mark_trained(ax, [record["trained"]])
        lengths = sorted({length for of in found.values() for length in of})
        ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
        ax.set(xlabel=record["unit"], ylabel=figures.wrapped(measure["words"], 4))
    figures.legend(fig, [figures.handle(name, figures.look(n)) for n, name in enumerate(record["methods"])], columns=6)
    return fig
