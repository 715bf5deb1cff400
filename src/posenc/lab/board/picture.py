"""The picture at the head of the board: who learns soon, and who carries far."""

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
"""How much wider than its beginning the band of those is that learn fewer than half of the tasks."""

GREY: dict[str, Any] = {"marker": "o", "color": "grey", "alpha": 0.4, "markersize": 4}


@figures.styled
def speed_and_reach(found: Sequence[Standing]) -> Figure | None:
    """Every encoding by the steps that it takes to learn, a median, and how far it carries, a geometric mean.

    The usual encodings have names and colours, others are grey points. Those that learn fewer than half of the tasks
    have no such median, and stand at the side; those measured on fewer are left out. None without any that learned.
    """
    drawn = comparable(found)
    quick = [one for one in drawn if math.isfinite(one.speed)]
    if not quick:
        return None
    fig = figures.figure(9, 5.2, "Learning speed and reach over all tasks")
    ax = fig.add_subplot()
    slow = [one for one in drawn if one not in quick]
    edge = 1.15 * max(one.speed for one in quick)
    speeds = {one.label: one.speed for one in quick}
    speeds |= {one.label: edge * BAND**0.5 for one in slow}
    for one in drawn:
        own = figures.look(places([one.label])[one.label])
        usual: dict[str, Any] = {"marker": own.marker, "color": own.color, "alpha": 0.9}
        ax.plot(speeds[one.label], one.reach, linestyle="none", **(usual if one.label in USUAL else GREY))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        figures.plain_log(axis)
    if slow:
        ticks = [place for place in ax.get_xticks() if min(speeds.values()) / 1.1 <= place < edge]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.axvspan(edge, edge * BAND, color=figures.GRID, alpha=0.4, linewidth=0)
        middle = edge * BAND**0.5
        words, above = "learn fewer than\nhalf of the tasks", ax.get_xaxis_transform()
        ax.text(middle, 1.01, words, transform=above, ha="center", va="bottom", fontsize="small")
        ax.set_xlim(right=edge * BAND)
    # Room for names at the corners.
    ax.set_ylim(min(one.reach for one in drawn) / 1.08, max(one.reach for one in drawn) * 1.08)
    # Those without a name are where no words may stand.
    words = {one.label: one.label for one in drawn if one.label in USUAL}
    marks = sorted(drawn, key=lambda one: one.label not in words)
    beside = [(speeds[one.label], one.reach, words.get(one.label, ""), "") for one in marks]
    figures.name_points(ax, beside)
    ax.set(xlabel="steps to learn, in units of the median encoding", ylabel="reach, multiples of the trained length")
    return fig


def comparable(found: Sequence[Standing]) -> list[Standing]:
    """Those that are drawn; the usual ones stand in front."""
    # Medians over few tasks would stand beside medians over others.
    most = max((one.tasks for one in found), default=0)
    drawn = [one for one in found if 2 * one.tasks > most and not math.isnan(one.reach)]
    return sorted(drawn, key=lambda one: one.label in USUAL)
