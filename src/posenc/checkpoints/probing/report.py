"""The record of a probe to a page, to Markdown, and in words."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posenc.checkpoints.extension.report import how, in_markdown, rendered, row_by_row
from posenc.checkpoints.measures import plan as plans
from posenc.foreign.text import markdown as shown
from posenc.lab import store
from posenc.lab.results import figures
from posenc.lab.results.drawer import Drawer

TEMPLATE = Path(__file__).with_name("report.html.jinja")

TOP = 8
"""How many heads a table names."""

Record = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]


def write(record: Record, folder: Path) -> Path:
    """Write report.html, report.md and figures/*.png into the folder, each whole, and return the path of the page."""
    drawer = Drawer(store.inside(folder, "figures"))
    by = dict(tables(record))
    drawn = [
        drawer(
            "by-length",
            partial(by_length, record),
            "Left: perplexity of the same tokens behind more and more text. Right: what is right of each task; the "
            "dotted line is where a task counts as done. Bars are standard errors.",
            row_by_row(*by[TOKENS]),
        ),
        drawer(
            "bands",
            partial(by_band, record),
            "How the loss of the same tokens changes where a band of frequencies stands still: above zero it was of "
            "use, below zero it did harm. Bars are standard errors.",
            row_by_row(*by.get(BANDS, ([], []))),
        ),
        drawer(
            "heads",
            partial(by_layer, record),
            "How much more the part of a logit that a band makes varies over keys beyond the trained distances than "
            "over nearer ones: the middle one of the heads of each layer. 1 is alike.",
            row_by_row(*by.get(HEADS, ([], []))),
        ),
    ]
    kept = [figure for figure in drawn if figure]
    store.write(folder / "report.md", markdown(record, kept).encode())
    store.write(folder / "report.html", page(record, kept).encode())
    return folder / "report.html"


TOKENS = "Perplexity of the same tokens behind more and more text"
TASKS = "What is right of each task"
BANDS = "Change of the loss (nats) where a band of frequencies stands still"
PLAN = "What was planned for a pass"
HEADS = "Heads whose logits vary most over keys beyond the trained distances, against nearer ones"


def tables(record: Record) -> list[tuple[str, Table]]:
    """Everything that was measured, as tables with their captions."""
    lengths = record["lengths"]
    columns = [f"{length:,}" for length in lengths]
    tokens = [with_error(one) for one in record["same_tokens"]["values"]]
    out: list[tuple[str, Table]] = [(TOKENS, (["tokens", *columns], [["perplexity", *tokens]]))]
    if record["tasks"]:
        rows = []
        for task in record["tasks"]:
            at = {one["length"]: with_error(one) for one in task["values"]}
            chance = "" if task["chance"] is None else f"{task['chance']:.3f}"
            rows.append([task["name"], *(at.get(length, "") for length in lengths), chance])
        out.append((TASKS, (["task", *columns, "guessing"], rows)))
    if record["bands"]:
        at = [one["length"] for one in record["bands"][0]["changes"]]
        rows = [
            [band["words"], *(f"{one['change']:+.3f} ± {one['error']:.3f}" for one in band["changes"])]
            for band in record["bands"]
        ]
        out.append((BANDS, (["band", *(f"at {length:,} tokens" for length in at)], rows)))
    if record["heads"]:
        headers = ["layer and head", "logits", *(band["pairs"] for band in bands_of_heads(record))]
        headers.append("weight on far keys")
        rows = [
            [
                f"{head['layer']}.{head['head']}",
                *(f"{number:.2g}" for number in (head["whole"], *head["spread"])),
                f"{head['weight']:.0%} of {head['uniform']:.0%}",
            ]
            for head in sorted(record["heads"], key=lambda head: -head["whole"])[:TOP]
        ]
        out.append((HEADS, (headers, rows)))
    return [*out, (PLAN, plans.table(record["plan"]))]


def bands_of_heads(record: Record) -> list[Record]:
    """The bands that the numbers of heads are of: those of the layers that see beyond the trained length."""
    return [band for band in record["bands"] if band["of"] in ("", record["heads_of"])]


def with_error(one: Record) -> str:
    """A value in three digits with its error.

    >>> with_error({"value": 12.345, "error": 0.25}), with_error({"value": 0.5, "error": None})
    ('12.3 ± 0.25', '0.5')
    """
    return f"{one['value']:.3g}" + ("" if one["error"] is None else f" ± {one['error']:.2g}")


def sentences(record: Record) -> list[str]:
    """What was found, in words."""
    out = [tokens_in_words(record)]
    done = [task for task in record["tasks"] if task["effective"]]
    for task in done:
        missed = next((one for one in task["values"] if one["value"] < record["enough"]), None)
        further = f"; at {missed['length']:,} only {missed['value']:.0%} of it" if missed else ", the longest tried"
        out.append(f"{task['name']} is done up to {task['effective']:,} tokens{further}.")
    failed = [task for task in record["tasks"] if task["values"] and not task["effective"]]
    if failed:
        listed = ", ".join(
            f"{task['name']} ({task['values'][0]['value']:.0%} at {task['values'][0]['length']:,} tokens)"
            for task in failed
        )
        out.append(
            f"Less than {record['enough']:.1%} is right of: {listed}. What cannot be done in the shortest text says "
            f"nothing of longer ones, and was not tried in them."
        )
    out += [f"Left out, {task['name']}: {task['why_not']}." for task in record["tasks"] if task["why_not"]]
    out += bands_in_words(record)
    for what in ("bands", "heads"):
        if record[f"{what}_left_out"]:
            out.append(f"Left out, {what}: {record[f'{what}_left_out']}.")
    return [*out, " ".join(plans.sentences(record["plan"]))]


def tokens_in_words(record: Record) -> str:
    """Up to where more text helps."""
    of, lengths = record["same_tokens"], record["lengths"]
    at = {one["length"]: one for one in of["values"]}
    first, useful = at[lengths[0]], at[of["useful"]]
    if of["useful"] == lengths[0]:
        out = f"More than {lengths[0]:,} tokens of text were of no use (perplexity {first['value']:.3g})"
    else:
        out = (
            f"More text was of use up to {of['useful']:,} tokens: the perplexity of the same tokens went from "
            f"{first['value']:.3g} behind {lengths[0]:,} to {useful['value']:.3g}"
        )
    if of["harms"]:
        out += f"; from {of['harms']:,} tokens on it did harm ({at[of['harms']]['value']:.3g})"
    return out + f". The model was trained to {record['trained']:,}."


def bands_in_words(record: Record) -> list[str]:
    """The band that is of most use, and the one that does most harm, at each length."""
    out = []
    for place, length in enumerate(one["length"] for one in (record["bands"] or [{"changes": []}])[0]["changes"]):
        changes = [(band["changes"][place], band["words"]) for band in record["bands"]]
        clear = [(one["change"], words) for one, words in changes if abs(one["change"]) > 2 * one["error"]]
        most, least = max(clear, default=(0.0, "")), min(clear, default=(0.0, ""))
        if most[0] > 0:
            out.append(
                f"At {length:,} tokens {most[1]} are of most use: without their turning {most[0]:.3g} nats are lost."
            )
        if least[0] < 0:
            out.append(f"At {length:,} tokens {least[1]} do harm: without their turning {-least[0]:.3g} nats are won.")
        if not clear:
            out.append(
                f"At {length:,} tokens no band of frequencies changes the loss by more than two standard errors."
            )
    return out


@figures.styled
def by_length(record: Record) -> Figure:
    """Perplexity of the same tokens, and the tasks, against the length."""
    fig, axes = figures.panels(2 if record["tasks"] else 1, 2, 4.6, 3.6, "By length")
    draw_values(axes[0], record["same_tokens"]["values"], 0)
    axes[0].set(xlabel="tokens", ylabel="perplexity")
    tried = [task for task in record["tasks"] if task["values"]]
    for place, task in enumerate(tried, 1):
        draw_values(axes[1], task["values"], place)
    if record["tasks"]:
        axes[1].axhline(record["enough"], color=figures.SOFT, linestyle=":")
        axes[1].set(xlabel="tokens", ylabel="share right", ylim=(-0.05, 1.05))
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xticks(record["lengths"], [f"{length:,}" for length in record["lengths"]])
        ax.minorticks_off()
        ax.set_xlim(record["lengths"][0] / 1.1, record["lengths"][-1] * 1.1)
        if record["lengths"][0] <= record["trained"] <= record["lengths"][-1]:
            figures.mark_trained(ax, [record["trained"]])
    figures.legend(fig, [figures.handle(task["name"], figures.look(n)) for n, task in enumerate(tried, 1)])
    return fig


def draw_values(ax: Any, values: Sequence[Record], place: int) -> None:
    own = figures.look(place)
    bars = [one["error"] or 0.0 for one in values]
    ax.errorbar(
        [one["length"] for one in values],
        figures.numbers([one["value"] for one in values]),
        yerr=bars,
        color=own.color,
        linestyle=own.dashes,
        marker=own.marker,
        capsize=2,
    )


@figures.styled
def by_band(record: Record) -> Figure | None:
    """The change of the loss against the band."""
    if not record["bands"]:
        return None
    fig = figures.figure(8, 3.6, "Where a band of frequencies stands still")
    ax, handles = fig.add_subplot(), []
    names = [band["pairs"].removeprefix("pairs ") for band in record["bands"]]
    for place, first in enumerate(record["bands"][0]["changes"]):
        of = [band["changes"][place] for band in record["bands"]]
        own = figures.look(place)
        ys, bars = ([one[key] for one in of] for key in ("change", "error"))
        ax.errorbar(names, ys, yerr=bars, color=own.color, linestyle=own.dashes, marker=own.marker, capsize=2)
        handles.append(figures.handle(f"{first['length']:,} tokens", own))
    ax.axhline(0, color=figures.SOFT, linewidth=0.8)
    ax.set(xlabel="pairs, fastest first", ylabel="change of the loss (nats)")
    figures.legend(fig, handles)
    return fig


@figures.styled
def by_layer(record: Record) -> Figure | None:
    """For each layer, how the parts of its logits vary over far keys, against near ones."""
    if not record["heads"]:
        return None
    fig = figures.figure(8, 3.6, "Logits beyond the trained distances, against nearer ones")
    ax, handles = fig.add_subplot(), []
    layers = sorted({head["layer"] for head in record["heads"]})
    for place, band in enumerate(bands_of_heads(record)):
        own = figures.look(place)
        ys = [middle([head["spread"][place] for head in record["heads"] if head["layer"] == one]) for one in layers]
        ax.plot(layers, figures.numbers(ys), color=own.color, linestyle=own.dashes, marker=own.marker)
        handles.append(figures.handle(band["pairs"], own))
    ax.set_yscale("log")
    figures.plain_log(ax.yaxis)
    ax.axhline(1, color=figures.SOFT, linewidth=0.8)
    ax.set(xlabel="layer", ylabel="variance, far / near")
    figures.legend(fig, handles)
    return fig


def middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def title(record: Record) -> str:
    return f"{Path(record['model']).name}: what it can do in up to {record['lengths'][-1]:,} tokens"


def markdown(record: Record, drawn: Sequence[Mapping[str, Any]]) -> str:
    """The probe as a page of Markdown."""
    parts = [f"# {shown(title(record))}", *map(shown, sentences(record))]
    for caption, rows in tables(record):
        parts += [f"{shown(caption)}:", in_markdown(*rows)]
    parts += [f"![{shown(figure['says'])}](figures/{figure['name']}.png)" for figure in drawn]
    tasks = [f"- {shown(task['name'])}: {shown(task['words'])}" for task in record["tasks"]]
    parts += ["## The tasks", "\n".join(tasks)] if tasks else []
    return "\n\n".join([*parts, "## How it was made", how(record)]) + "\n"


def page(record: Record, drawn: Sequence[Mapping[str, Any]]) -> str:
    """The probe as an HTML page that needs nothing beside it."""
    done = [task for task in record["tasks"] if task["effective"]]
    facts = [
        ("trained to, tokens", f"{record['trained']:,}"),
        ("tested up to, tokens", f"{record['lengths'][-1]:,}"),
        ("text is of use up to, tokens", f"{record['same_tokens']['useful']:,}"),
        ("tasks done, of those tried", f"{len(done)} of {len(record['tasks'])}"),
    ]
    return rendered(
        TEMPLATE,
        record,
        title=title(record),
        facts=facts,
        said=sentences(record),
        tables=tables(record),
        figures=drawn,
        tasks=[(task["name"], task["words"]) for task in record["tasks"]],
    )
