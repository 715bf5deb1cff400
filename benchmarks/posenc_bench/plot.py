"""Plot the cost of attention against the number of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from posenc.lab import figures
from posenc.lab.appearance import short
from posenc.lab.results.figures.style import Look
from posenc_bench.goals import RowDict

PASSES = ("forward", "forward and backward")


@figures.styled
def cost(result: Mapping[str, Any]) -> Figure | None:
    """Plot the single-thread milliseconds per call of every encoding, plain and hand-written attention.

    Both axes are logarithmic. Returns None if the rows have no attention candidate with two lengths.
    """
    rows = [row for row in result["rows"] if row["what"] == "attention" and row["threads"] == 1 and row["seconds"]]
    rows = with_a_line(rows)
    passes = [name for name in PASSES if len({row["facts"]["tokens"] for row in rows if is_pass(row, name)}) > 1]
    if not passes:
        return None
    names = list(dict.fromkeys(row["candidate"] for row in rows if row["kind"] == "posenc"))
    looks = {name: figures.look(place) for place, name in enumerate(names)}
    machine = result["hardware"]["processor"]
    title = f"Causal attention, 8 heads of 64 channels, float32, one thread ({machine})"
    width = 5.6 * len(passes) + 0.6
    fig = figures.figure(width, 6.2, figures.wrap_title(title, width))
    for ax, name in zip(fig.subplots(1, len(passes), squeeze=False)[0], passes, strict=True):
        draw(ax, [row for row in rows if is_pass(row, name)], looks)
        ax.set_title(name)
    return fig


def with_a_line(rows: Sequence[RowDict]) -> list[RowDict]:
    """Return the rows of candidates measured at several lengths; images have sizes instead of lengths."""
    in_rows = [row for row in rows if row["case"].startswith("T ")]
    lengths = {(row["candidate"], row["facts"]["pass"]): set() for row in in_rows}
    for row in in_rows:
        lengths[row["candidate"], row["facts"]["pass"]].add(row["facts"]["tokens"])
    return [row for row in in_rows if len(lengths[row["candidate"], row["facts"]["pass"]]) > 1]


def is_pass(row: RowDict, passes: str) -> bool:
    return row["facts"]["pass"] == passes


def draw(ax: Axes, rows: Sequence[RowDict], looks: Mapping[str, Look]) -> None:
    """Draw a line for each candidate, with its name at the end."""
    lengths = sorted({row["facts"]["tokens"] for row in rows})
    ends = []
    for name in dict.fromkeys(row["candidate"] for row in rows):
        rows_of_candidate = [row for row in rows if row["candidate"] == name]
        x = [row["facts"]["tokens"] for row in rows_of_candidate]
        y = [row["seconds"] * 1000 for row in rows_of_candidate]
        look, kind = looks.get(name), rows_of_candidate[0]["kind"]
        if look is not None:
            color, marker, dashes, width = look.color, look.marker, look.dashes, 1.4
        elif kind == "limit":
            color, marker, dashes, width = figures.INK, "", "-", 3.2
        else:
            color, marker, dashes, width = figures.SOFT, "", (0, (1, 1.6)), 1.2
        (line,) = ax.plot(x, y, color=color, marker=marker, linestyle=dashes, linewidth=width, markersize=4)
        line.set(markeredgecolor=figures.PAPER, markeredgewidth=0.4)
        ends.append((x[-1], y[-1], short(name, 40), ""))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    figures.plain_log(ax.yaxis)
    ax.set(xlabel="tokens", ylabel="ms of one call")
    ax.xaxis.set_major_locator(FixedLocator(lengths))
    ax.xaxis.set_major_formatter(FixedFormatter([f"{length:,}" for length in lengths]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(right=16 * lengths[-1])  # room for the names
    figures.name_points(ax, ends)
