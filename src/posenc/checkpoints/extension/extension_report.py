"""The record of an extension to a page and to Markdown: the table, the curves, what it cost, and how it was made."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from posenc.foreign.text import markdown as shown
from posenc.foreign.text import markdown_code
from posenc.lab import store
from posenc.lab.results import figures
from posenc.lab.results.drawer import Drawer
from posenc.lab.results.report import TEMPLATE as PAGE
from posenc.lab.results.report import pages
from posenc.lab.results.summary import duration
from posenc.lab.results.tables import as_markdown

TEMPLATE = Path(__file__).with_name("extension_report.html.jinja")

Record = Mapping[str, Any]


def write(record: Record, folder: Path) -> Path:
    """Write report.html, report.md and figures/*.png into the folder, each whole, and return the path of the page."""
    drawer = Drawer(store.inside(folder, "figures"))
    drawn = [
        drawer("perplexity-by-length", partial(by_length, record), length_in_words(record), row_by_row(*table(record))),
        drawer(
            "perplexity-by-position",
            partial(by_position, record),
            position_in_words(record),
            row_by_row(*bands(record)),
        ),
        drawer(
            "pass-keys",
            partial(pass_keys, record),
            "How many of the pass keys each method says, by how deep they lie.",
            row_by_row(*(key_table(record) or ([], []))),
        ),
        drawer(
            "tuning",
            partial(tuning, record),
            "The loss of each step of fine-tuning, and its running mean.",
            tuning_in_words(record),
        ),
    ]
    shown = [figure for figure in drawn if figure]
    store.write(folder / "report.md", markdown(record, shown).encode())
    store.write(folder / "report.html", page(record, shown).encode())
    return folder / "report.html"


def entries(record: Record) -> list[Record]:
    """The methods, and the winner again where it was tuned."""
    return [*record["methods"], *([record["tuned"]] if record.get("tuned") else [])]


def number(value: float) -> str:
    """A perplexity in about three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 100 else f"{value:.2f}"


def table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Perplexity of each method at each length, of all tokens and of the last ones: headers and rows."""
    lengths, last = record["lengths"], record["last"]
    headers = ["method", *(f"mean at {length:,}" for length in lengths), *(f"last {last} at {n:,}" for n in lengths)]
    rows = [
        [entry["name"], *(number(at[key]) for key in ("mean", "last") for at in entry["lengths"])]
        for entry in entries(record)
    ]
    return headers, rows


def cost(record: Record) -> tuple[list[str], list[list[str]]]:
    """What the pass at the target costs each method, and how its checkpoint is had: headers and rows."""
    headers = ["method", "tokens/s", "seconds", "CPU seconds", "peak MiB", "checkpoint"]
    rows = []
    for entry in entries(record):
        numbers = [entry["tokens_per_second"], entry["seconds"], entry["cpu_seconds"], entry["peak_mib"]]
        how = "as it is" if entry["name"] == "none" else "config" if entry["config"] is not None else "attach only"
        rows.append([entry["name"], *("" if value is None else f"{value:,.0f}" for value in numbers), how])
    return headers, rows


def in_short(record: Record) -> tuple[list[str], list[list[str]]]:
    """The table for a terminal: the trained length and the target alone."""
    trained, target, last = record["trained"], record["target"], record["last"]
    headers = ["method", f"mean at {trained:,}", f"mean at {target:,}", f"last {last} at {target:,}", "tokens/s", "MiB"]
    rows = []
    for entry in entries(record):
        found = {at["length"]: at for at in entry["lengths"]}
        cells = [found[trained]["mean"], found[target]["mean"], found[target]["last"]]
        peak = "" if entry["peak_mib"] is None else f"{entry['peak_mib']:,.0f}"
        rows.append([entry["name"], *map(number, cells), f"{entry['tokens_per_second']:,.0f}", peak])
    return headers, rows


def bands(record: Record) -> tuple[list[str], list[list[str]]]:
    """Perplexity of the tokens between lengths, from the pass at the target: headers and rows."""
    between = [f"{first:,} to {end:,}" for first, end, _ in record["methods"][0]["bands"]]
    return ["method", *between], [[e["name"], *(number(band[2]) for band in e["bands"])] for e in entries(record)]


def key_table(record: Record) -> tuple[list[str], list[list[str]]] | None:
    """Pass keys by method and depth, or None where longer texts were not tried."""
    found = [entry for entry in record["methods"] if entry.get("passkey")]
    if not found:
        return None
    headers = ["method", *(f"depth {key['depth']:.0%}" for key in found[0]["passkey"])]
    return headers, [[e["name"], *(f"{key['right']} of {key['trials']}" for key in e["passkey"])] for e in found]


def sentences(record: Record) -> list[str]:
    """All that is said of a run, a paragraph each."""
    out = [record["in_words"], *([record["stretch"]] if "stretch" in record else [])]
    written = record["written"]
    out.append(
        f"The extended checkpoint ({written['method']}): {written['words']}" if written["path"] else written["words"]
    )
    if record.get("passkey"):
        out.append(record["passkey"]["words"])
    if record.get("tuned"):
        out.append(tuning_in_words(record))
    out += [f"Left out, {name}: {why}." for name, why in record["left_out"].items()]
    return out


def tuning_in_words(record: Record) -> str:
    """How the loss went; nothing where nothing was tuned."""
    if not (tuned := record.get("tuned")):
        return ""
    first, final = (sum(part) / len(part) for part in ends(tuned["loss"]))
    return (
        f"{tuned['name'].partition(',')[0]} was tuned for {len(tuned['loss'])} steps in "
        f"{duration(tuned['tuning_seconds'])}: its loss went from {first:.3f} to {final:.3f} nats (means of the "
        f"first and the last tenth of the steps)."
    )


def row_by_row(headers: list[str], rows: list[list[str]]) -> str:
    """A table in one line of words, for who does not see its picture.

    >>> row_by_row(["method", "at 8", "at 16"], [["none", "2.1", "9.0"], ["yarn", "2.1", "2.2"]])
    'none: at 8 2.1, at 16 9.0; yarn: at 8 2.1, at 16 2.2.'
    """
    said = [f"{name}: {', '.join(map(' '.join, zip(headers[1:], cells, strict=True)))}" for name, *cells in rows]
    return f"{'; '.join(said)}." if said else ""


def ends(losses: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    tenth = max(1, len(losses) // 10)
    return losses[:tenth], losses[-tenth:]


def length_in_words(record: Record) -> str:
    return (
        f"Left: perplexity of all tokens of a window. Right: of its last {record['last']}, which have the whole window "
        f"before them; a mean hides behind its many early tokens what happens at the end. Logarithmic."
    )


def position_in_words(record: Record) -> str:
    return (
        f"Perplexity of the tokens around each position, of one pass at {record['target']:,} tokens. The text is the "
        f"same for all, so what moves all lines is the text."
    )


@figures.styled
def by_length(record: Record) -> Figure:
    """Perplexity against the length of the window, of all tokens and of the last ones."""
    fig, axes = figures.panels(2, 2, 4.6, 3.6, "Perplexity by length")
    for ax, key, title in zip(axes, ("mean", "last"), ("all tokens", f"last {record['last']} tokens"), strict=True):
        for place, entry in enumerate(entries(record)):
            own = figures.look(place)
            xs, ys = [at["length"] for at in entry["lengths"]], [at[key] for at in entry["lengths"]]
            drawn = ax.plot(xs, figures.numbers(ys), color=own.color, linestyle=own.dashes, marker=own.marker)
            drawn[0].set_gid(f"encoding-{place}")
        finish(ax, record, f"{title}: perplexity")
        ax.set_xticks(record["lengths"], [f"{length:,}" for length in record["lengths"]])
    named(fig, record)
    return fig


@figures.styled
def by_position(record: Record) -> Figure:
    """Perplexity against the position of the token, in one pass at the target."""
    fig = figures.figure(9, 4.2, f"Perplexity by position, in a text of {record['target']:,} tokens")
    ax = fig.add_subplot()
    for place, entry in enumerate(entries(record)):
        own, curve = figures.look(place), entry["curve"]
        ys = figures.numbers(curve["perplexity"])
        drawn = ax.plot(curve["tokens"], ys, color=own.color, linestyle=own.dashes, linewidth=1.3)
        drawn[0].set_gid(f"encoding-{place}")
    finish(ax, record, "perplexity")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    named(fig, record)
    return fig


def finish(ax: Any, record: Record, ylabel: str) -> None:
    ax.set_yscale("log")
    figures.plain_log(ax.yaxis)
    figures.mark_trained(ax, [record["trained"]])
    ax.set(xlabel="tokens", ylabel=ylabel)


def named(fig: Figure, record: Record) -> None:
    figures.legend(
        fig, [figures.handle(entry["name"], figures.look(n)) for n, entry in enumerate(entries(record))], columns=6
    )


@figures.styled
def pass_keys(record: Record) -> Figure | None:
    """The share of pass keys that each method says at the target, by depth."""
    found = [entry for entry in record["methods"] if entry.get("passkey")]
    if not found:
        return None
    shares = [[key["right"] / key["trials"] for key in entry["passkey"]] for entry in found]
    fig = figures.figure(6.5, 1.2 + 0.3 * len(found), f"Pass keys said in {record['target']:,} tokens")
    ax = fig.add_subplot()
    drawn = ax.imshow(figures.numbers(shares), aspect="auto", vmin=0, vmax=1, cmap="viridis")
    ax.set_xticks(range(len(shares[0])), [f"{key['depth']:.0%}" for key in found[0]["passkey"]])
    ax.set_yticks(range(len(found)), [entry["name"] for entry in found])
    ax.set_xlabel("text before the key")
    ax.grid(visible=False)
    fig.colorbar(drawn, ax=ax, label="share said")
    return fig


@figures.styled
def tuning(record: Record) -> Figure | None:
    """The loss of every step of fine-tuning."""
    if not record.get("tuned"):
        return None
    losses = figures.numbers(record["tuned"]["loss"])
    wide = max(1, len(losses) // 10)
    means = [losses[max(0, n - wide + 1) : n + 1].mean() for n in range(len(losses))]
    fig = figures.figure(7, 3.4, "Fine-tuning")
    ax = fig.add_subplot()
    ax.plot(losses, color=figures.LIGHT[7], linewidth=0.8)
    ax.plot(means, color=figures.LIGHT[0])
    ax.set(xlabel="step", ylabel="loss (nats per token)")
    return fig


def markdown(record: Record, drawn: Sequence[Mapping[str, Any]]) -> str:
    """The run as a page of Markdown."""
    parts = [f"# {shown(title(record))}", *map(shown, sentences(record)), in_markdown(*table(record))]
    parts += ["Perplexity of the tokens between these positions, in one text of the target's length:"]
    parts += [in_markdown(*bands(record)), "What the pass at the target costs:", in_markdown(*cost(record))]
    if keys := key_table(record):
        parts += ["Pass keys said at the target, by depth:", in_markdown(*keys)]
    parts += [f"![{shown(figure['says'])}](figures/{figure['name']}.png)" for figure in drawn]
    specs = [f"- {shown(entry['name'])}: {markdown_code(entry['spec'])}" for entry in entries(record)]
    parts += ["## The encodings", "\n".join(specs), "## How it was made", how(record)]
    return "\n\n".join(parts) + "\n"


def in_markdown(headers: list[str], rows: list[list[str]]) -> str:
    return as_markdown(list(map(shown, headers)), [list(map(shown, row)) for row in rows])


def how(record: Record) -> str:
    """How the run was made, as a list in Markdown."""
    said = {name: (markdown_code if name == "command" else shown)(value) for name, value in record["made"].items()}
    return "\n".join(f"- {shown(name)}: {value}" for name, value in said.items())


def title(record: Record) -> str:
    name = Path(record["model"]).name
    return f"{name}: from {record['trained']:,} to {record['target']:,} tokens"


def page(record: Record, drawn: Sequence[Mapping[str, Any]]) -> str:
    """The run as an HTML page that needs nothing beside it."""
    tables = [("Perplexity", table(record)), ("Perplexity of the tokens between positions", bands(record))]
    tables.append(("Cost of the pass at the target", cost(record)))
    if keys := key_table(record):
        tables.append(("Pass keys said at the target", keys))
    seconds = sum(entry["seconds"] for entry in entries(record))
    best = next(entry for entry in entries(record) if entry["name"] == record["winner"])
    facts = [
        ("trained to, tokens", f"{record['trained']:,}"),
        ("extended to, tokens", f"{record['target']:,}"),
        ("methods", str(len(record["methods"]) - 1)),
        (f"last {record['last']} before", number(record["methods"][0]["lengths"][-1]["last"])),
        (f"last {record['last']} after", number(best["lengths"][-1]["last"])),
        ("for the longest passes", duration(seconds)),
    ]
    return (
        pages(TEMPLATE.parent, PAGE.parent)
        .get_template(TEMPLATE.name)
        .render(
            title=title(record),
            facts=facts,
            said=sentences(record),
            tables=tables,
            figures=drawn,
            looks=[
                (entry["name"], figures.look(n), entry["spec"], entry["words"])
                for n, entry in enumerate(entries(record))
            ],
            winner=record["winner"],
            made=[(name, f"`{value}`" if name == "command" else value) for name, value in record["made"].items()],
        )
    )
