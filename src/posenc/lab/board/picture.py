"""The picture at the head of the board: who learns soon, and who carries far."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from posenc.lab import ENCODINGS
from posenc.lab.board.tables import Standing
from posenc.lab.results import figures

BAND = 1.4
"""How much wider than its beginning the band of those is that learn fewer than half of the tasks."""

FURTHEST = 6
"""So many of those that carry furthest have their names."""


@figures.styled
def speed_and_reach(found: Sequence[Standing]) -> Figure | None:
    """Every encoding by the steps that it takes to learn, a median, and how far it carries, a geometric mean.

    Names stand beside the well-known ones, those that nobody beats in both, and those that carry furthest. Those that
    learn fewer than half of the tasks have no such median: they stand in a band at the side, one beside the other.
    Those that were measured on no more than half of the tasks are left out. None without any that learned.
    """
    drawn = comparable(found)
    quick = [one for one in drawn if math.isfinite(one.speed)]
    if not quick:
        return None
    fig = figures.figure(9, 5.2, "Learning speed and reach over all tasks")
    ax = fig.add_subplot()
    named = {*ENCODINGS, *(one.label for one in unbeaten(quick))}
    named |= {one.label for one in sorted(drawn, key=lambda one: -one.reach)[:FURTHEST]}
    slow = sorted((one for one in drawn if one not in quick), key=lambda one: one.reach)
    edge = 1.15 * max(one.speed for one in quick)
    places = {one.label: one.speed for one in quick}
    places |= {one.label: edge * BAND ** ((number + 1) / (len(slow) + 1)) for number, one in enumerate(slow)}
    for one in drawn:
        own, clear = figures.look(figures.places([one.label])[one.label]), 0.85 if one.label in ENCODINGS else 0.35
        ax.plot(places[one.label], one.reach, marker=own.marker, color=own.color, linestyle="none", alpha=clear)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        figures.plain_log(axis)
    if slow:
        ticks = [place for place in ax.get_xticks() if min(places.values()) / 1.1 <= place < edge]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.axvspan(edge, edge * BAND, color=figures.GRID, alpha=0.4, linewidth=0)
        middle = edge * BAND**0.5
        words, above = "learn fewer than\nhalf of the tasks", ax.get_xaxis_transform()
        ax.text(middle, 1.01, words, transform=above, ha="center", va="bottom", fontsize="small")
        ax.set_xlim(right=edge * BAND)
    # Room for names at the corners.
    ax.set_ylim(min(one.reach for one in drawn) / 1.08, max(one.reach for one in drawn) * 1.08)
    # Those without a name are where no words may stand.
    words = {one.label: figures.short(one.label, 26) for one in drawn if one.label in named}
    marks = sorted(drawn, key=lambda one: one.label not in words)
    beside = [(places[one.label], one.reach, words.get(one.label, ""), "") for one in marks]
    figures.name_points(ax, beside)
    ax.set(xlabel="steps to learn, in units of the median encoding", ylabel="reach, multiples of the trained length")
    return fig


def comparable(found: Sequence[Standing]) -> list[Standing]:
    """Those that are drawn; the well-known ones stand in front."""
    # Medians over few tasks would stand beside medians over others.
    most = max((one.tasks for one in found), default=0)
    drawn = [one for one in found if 2 * one.tasks > most and not math.isnan(one.reach)]
    return sorted(drawn, key=lambda one: one.label in ENCODINGS)


def unbeaten(drawn: Sequence[Standing]) -> list[Standing]:
    """Those that nobody beats in both, the quickest first: no other is at least as good in both, and better in one."""
    points = {(one.speed, -one.reach) for one in drawn}

    def beaten(one: Standing) -> bool:
        own = one.speed, -one.reach
        return any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in points)

    return sorted((one for one in drawn if not beaten(one)), key=lambda one: one.speed)


def in_words(found: Sequence[Standing]) -> str:
    """Who stands in front, for who does not see the picture."""
    drawn = [one for one in comparable(found) if math.isfinite(one.speed)]
    first = [f"{one.label} ({one.speed:.2f} of the median steps, {one.reach:.2f}x)" for one in unbeaten(drawn)]
    return (
        f"Of {len(drawn)} encodings that learn at least half of the tasks nobody beats in both speed and reach: "
        f"{', '.join(first)}."
        if drawn
        else ""
    )
