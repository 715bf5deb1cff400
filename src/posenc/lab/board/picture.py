"""The picture at the head of the board: who learns soon, and who carries far."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from posenc.lab import ENCODINGS
from posenc.lab.board.tables import Standing
from posenc.lab.results import figures


@figures.styled
def speed_and_reach(found: Sequence[Standing]) -> Figure | None:
    """Every encoding by the steps that it takes to learn, a median, and how far it carries, a geometric mean.

    Names stand beside the well-known ones, and those that nobody beats in both. Those that were measured on no more
    than half of the tasks are left out. None without any that learned.
    """
    drawn = comparable(found)
    if not drawn:
        return None
    fig = figures.figure(9, 5.2, "Learning speed and reach over all tasks")
    ax = fig.add_subplot()
    named = {*ENCODINGS, *(one.label for one in unbeaten(drawn))}
    for one in drawn:
        own = figures.look(list(ENCODINGS).index(one.label) if one.label in ENCODINGS else len(figures.LIGHT) - 1)
        ax.plot(one.speed, one.mean_reach, marker=own.marker, color=own.color, linestyle="none", alpha=0.85)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        figures.plain_log(axis)
    beside = [(one.speed, one.mean_reach, figures.short(one.label, 26), "") for one in drawn if one.label in named]
    figures.name_points(ax, beside)
    ax.set(xlabel="steps to learn, in units of the median encoding", ylabel="reach, multiples of the trained length")
    return fig


def comparable(found: Sequence[Standing]) -> list[Standing]:
    """Those that are drawn; the well-known ones stand in front."""
    # Medians over few tasks would stand beside medians over others.
    most = max((one.tasks for one in found), default=0)
    drawn = [one for one in found if math.isfinite(one.speed) and 2 * one.tasks > most]
    return sorted(drawn, key=lambda one: one.label in ENCODINGS)


def unbeaten(drawn: Sequence[Standing]) -> list[Standing]:
    """Those that nobody beats in both, the quickest first."""
    return sorted((one for one in drawn if not any(beats(other, one) for other in drawn)), key=lambda one: one.speed)


def in_words(found: Sequence[Standing]) -> str:
    """Who stands in front, for who does not see the picture."""
    drawn = comparable(found)
    first = [f"{one.label} ({one.speed:.2f} of the median steps, {one.mean_reach:.2f}x)" for one in unbeaten(drawn)]
    return f"Of {len(drawn)} encodings nobody beats in both speed and reach: {', '.join(first)}." if drawn else ""


def beats(one: Standing, other: Standing) -> bool:
    """Whether one is at least as good in both, and better in one of them."""
    better = one.speed < other.speed or one.mean_reach > other.mean_reach
    return better and one.speed <= other.speed and one.mean_reach >= other.mean_reach
