"""Draw the picture of the board: learning speed against reach."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from posenc.lab.appearance import places
from posenc.lab.board.scope import USUAL
from posenc.lab.board.tables import Standing
from posenc.lab.results import figures

BAND = 1.4
"""The end over the start of the band for encodings that learn fewer than half of the tasks."""

GREY: dict[str, Any] = {"marker": "o", "color": "grey", "alpha": 0.4, "markersize": 4}


@figures.styled
def speed_and_reach(standings: Sequence[Standing]) -> Figure | None:
    """Draw each encoding by its median steps to learn and its geometric mean reach.

    The usual encodings have names and colours, others are grey points. Those that learn fewer than half of the tasks
    have no median and are in a band at the side; those measured on fewer are left out. None if none learned.
    """
    drawable = drawable_standings(standings)
    quick = [row for row in drawable if math.isfinite(row.speed)]
    if not quick:
        return None
    fig = figures.figure(9, 5.2, "Learning speed and reach over all tasks")
    ax = fig.add_subplot()
    slow = [row for row in drawable if row not in quick]
    edge = 1.15 * max(row.speed for row in quick)
    speeds = {row.label: row.speed for row in quick}
    speeds |= {row.label: edge * BAND**0.5 for row in slow}
    for row in drawable:
        style = figures.look(places([row.label])[row.label])
        usual: dict[str, Any] = {"marker": style.marker, "color": style.color, "alpha": 0.9}
        ax.plot(speeds[row.label], row.reach, linestyle="none", **(usual if row.label in USUAL else GREY))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        figures.plain_log(axis)
    if slow:
        ticks = [place for place in ax.get_xticks() if min(speeds.values()) / 1.1 <= place < edge]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.axvspan(edge, edge * BAND, color=figures.GRID, alpha=0.4, linewidth=0)
        middle = edge * BAND**0.5
        label_names, transform = "learn fewer than\nhalf of the tasks", ax.get_xaxis_transform()
        ax.text(middle, 1.01, label_names, transform=transform, ha="center", va="bottom", fontsize="small")
        ax.set_xlim(right=edge * BAND)
    ax.set_ylim(min(row.reach for row in drawable) / 1.08, max(row.reach for row in drawable) * 1.08)
    # Points without a name still keep the names of others away.
    label_names = {row.label: row.label for row in drawable if row.label in USUAL}
    marks = sorted(drawable, key=lambda row: row.label not in label_names)
    labels = [(speeds[row.label], row.reach, label_names.get(row.label, ""), "") for row in marks]
    figures.name_points(ax, labels)
    ax.set(xlabel="steps to learn, in units of the median encoding", ylabel="reach, multiples of the trained length")
    return fig


def drawable_standings(standings: Sequence[Standing]) -> list[Standing]:
    """Return the standings to draw, with the usual ones last, in front."""
    # Medians over few tasks do not compare with medians over all.
    max_tasks = max((row.tasks for row in standings), default=0)
    drawable = [row for row in standings if 2 * row.tasks > max_tasks and not math.isnan(row.reach)]
    return sorted(drawable, key=lambda row: row.label in USUAL)
