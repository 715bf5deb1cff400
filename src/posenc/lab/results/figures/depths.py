"""The figure of tasks that hide what they ask for: what is found, by where it stands and how long the text is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posenc.lab.results import statistics, summary
from posenc.lab.results.figures.layout import MOST_PANELS, grid_of, letters, numbers, short, width_of
from posenc.lab.results.figures.measured import task_among
from posenc.lab.results.figures.style import SEQUENTIAL, styled
from posenc.lab.results.frames import OWN, Frame, records_of
from posenc.lab.results.summary import Record, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from posenc.lab.results.figures.layout import Size


@styled
def depths(
    data: Frame | Sequence[Record],
    task: str | None = None,
    **size: "Unpack[Size]",
) -> Figure | None:
    """What share of hidden things is found, by their place and the length, a panel for each encoding that learned.

    data           posenc.lab.load(folder, what="depths"), or records
    task           which task; the only one, if None
    size           as in `extrapolation`

    A cell is the median over the seeds that learned; the first column is the trained length. None where no task hides
    anything, or no encoding learned it.

    Raises ValueError for a task that there is not, for a table without the columns, and for other axes.
    """
    records = records_of(data, "depths")
    task = task_among(records, task)
    found = [(result.label, table) for result in summary.results(records, task) if (table := found_by_place(result))]
    if not found:
        return None
    found = found[:MOST_PANELS]
    on = grid_of(len(found), 3, (3.0, 2.2), f"{task}: found, by place and length, %", **size)
    for one, (label, table) in zip(on.axes, found, strict=True):
        draw(one, table, short(label, 28))
    on.share("length, symbols", "x")
    on.share("place in the text, %", "y")
    return on.figure


Table = dict[tuple[float, float], float]
"""(length, depth) -> share of sequences answered without a mistake."""


def found_by_place(result: Result) -> Table:
    """The medians over the seeds that learned; empty where there are none, or nothing is hidden."""
    seen: dict[tuple[float, float], list[float]] = {}
    for run in result.learned:
        for entry in summary.get(run, "depths") or []:
            length, depth, share = (summary.number(summary.get(entry, name)) for name in OWN["depths"])
            if length is not None and depth is not None and share is not None:
                seen.setdefault((length, depth), []).append(share)
    return {at: spread.median for at, shares in seen.items() if (spread := statistics.spread(shares))}


def draw(ax: Axes, table: Table, title: str) -> None:
    lengths, places = (sorted({at[axis] for at in table}) for axis in (0, 1))
    cells = numbers([[table.get((length, place), np.nan) for length in lengths] for place in places]) * 100
    ax.imshow(cells, cmap=SEQUENTIAL, vmin=0, vmax=100, aspect="auto", interpolation="none")
    ax.set_title(title)
    ax.set_xticks(range(len(lengths)), [summary.count(length) for length in lengths])
    ax.set_yticks(range(len(places)), [f"{100 * place:.0f}" for place in places])
    ax.grid(visible=False)
    if 4 * len(lengths) > letters(width_of(ax), "x-small"):
        return
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            write(ax, row, column, value)


def write(ax: Axes, row: int, column: int, value: float) -> None:
    """A cell's number, on whatever colour is behind it."""
    given: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "x-small"}
    ax.text(column, row, f"{value:.0f}", color="white" if value < 55 else "black", **given)
