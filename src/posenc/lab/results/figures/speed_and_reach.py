"""The headline: how fast an encoding learns a task, and how far beyond the trained length it then carries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc.lab.results import summary
from posenc.lab.results.figures.layout import (
    letters,
    name_points,
    note,
    numbers,
    plain_log,
    sheet,
    short,
    width_of,
)
from posenc.lab.results.figures.measured import chosen, looks, task_among
from posenc.lab.results.figures.style import BROKEN, GRID, Look, ink, paper, soft, styled
from posenc.lab.results.frames import Frame, records_of
from posenc.lab.results.summary import Headline, Record, Result, Spread

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from posenc.lab.results.figures.layout import Size

SPEEDS = {"cpu_s": ("cpu_seconds", "CPU seconds to 99 %"), "steps": ("steps", "steps to 99 %")}


@styled
def headline(
    data: Frame | Sequence[Record],
    task: str | None = None,
    *,
    speed: str = "cpu_s",
    **size: "Unpack[Size]",
) -> Figure | None:
    """Learning speed against reach: quick encodings stand to the left, those that carry far at the top.

    data           posenc.lab.load(folder), or records
    task           one task; None draws a panel for each that has an answer to be right or wrong (text has none)
    speed          cpu_s: CPU seconds to 99 % at the trained length; steps: training steps
    size           as in `extrapolation`

    A mark stands at the medians, its bars are their intervals: of time over the seeds that learned, of reach over all
    seeds, of which one that has not learned carries no further than trained. The reach is the multiple of
    the trained length up to which at least 90 % of answers are right, of those that were tested; 1 is no further than
    trained. Encodings of which no seed learned stand at the right edge; where some did not, their share is written
    beside the mark.

    None where no task was measured in this way.

    Raises ValueError for a task or a speed that there is not, for a table without the columns, and for other axes.
    """
    records = records_of(data, "lengths")
    (speed,) = chosen(speed, tuple(SPEEDS), "speed")
    tasks = summary.tasks(records) if task is None else [task_among(records, task)]
    shown = {name: found for name in tasks if tested_beyond(found := summary.results(records, name))}
    if not shown:
        return None
    columns = max(1, min(len(shown), 3, int((size.get("width") or 9) / 1.5)))
    rows = -(-len(shown) // columns)
    on = sheet(
        len(shown),
        columns,
        (max(5.2, 4.0 * columns), 3.6 * rows + 0.4),
        "How fast it learns, and how far it carries",
        **size,
    )
    appearance = looks(records)
    for one, (name, found) in zip(on.axes, shown.items(), strict=True):
        factors = sorted({1.0, *(factor for r in found for _, factor in r.lengths() if factor and factor > 1)})
        of_task = [row for row in summary.headline(records) if row.task == name]
        draw_standings(one, of_task, SPEEDS[speed][0], factors, appearance)
        one.set_title(short(name, letters(width_of(one), "medium")))
    for place, one in enumerate(on.axes):
        if place % columns == 0 or not on.own:
            one.set_ylabel("reach, trained lengths")
        # A label of the whole figure would stand in the legend.
        one.set_xlabel(SPEEDS[speed][1])
    return on.figure


def tested_beyond(found: Sequence[Result]) -> bool:
    """Whether answers were right or wrong at lengths past the trained one."""
    return not any(r.is_text for r in found) and any(f and f > 1 for r in found for _, f in r.lengths())


def draw_standings(
    ax: Axes, found: Sequence[Headline], speed: str, factors: Sequence[float], appearance: dict[str, Look]
) -> None:
    """The encodings of one task; `speed` is the field that has their times."""
    known = [(s, time, s.reach) for s in found if (time := getattr(s, speed)) is not None and s.reach is not None]
    never = [s for s in found if not s.learned]
    low, high = ends_of([time for _, time, _ in known])
    named = []
    # In the scales of the axes: the reach doubles from step to step, and so does the time.
    top = np.log2(max(factors[-1], 1.2))
    for place, (s, time, reach) in enumerate(known):
        own = appearance[s.label]
        group = f"encoding-{own.place}"
        # A reach below 1, of seeds that have not learned, is shown as 1.
        x, left, right = numbers([time.median, time.low, time.high])
        y, foot, head = np.maximum(numbers([reach.median, reach.low, reach.high]), 1.0)
        # Reaches are few, so many encodings share one: their intervals lie one inside the other.
        bar: dict[str, Any] = {"color": own.color, "linewidth": 1 + 6 * (1 - place / len(known)), "alpha": 0.5}
        ax.hlines(y, left, right, **bar, gid=group)
        ax.vlines(x, foot, head, **bar, gid=group)
        ax.plot(
            [x], [y], color=own.color, marker=own.marker, linestyle="none", markeredgecolor=paper(),
            markeredgewidth=0.6, gid=group, label=short(s.label),
        )  # fmt: skip
        share = f", {s.learned} of {s.seeds}" if s.learned < s.seeds else ""
        named.append((x, y, f"{short(s.label, 20)}{share}", group))
    ax.set_xscale("log")
    ax.set_yscale("log", base=2)
    right = edge_of(ax, low, high, never)
    ax.set_xlim(low, right)
    plain_log(ax.xaxis)
    # The strip of those that have not learned is no time.
    ticks = [x for x in ax.xaxis.get_major_locator()() if low <= x <= high]
    ax.xaxis.set_major_locator(FixedLocator(apart(ticks, np.log2(right / low) * 0.3 / width_of(ax))))
    ax.set_ylim(2 ** (-0.09 * top), 2 ** (1.14 * top))
    ax.yaxis.set_major_locator(FixedLocator(apart(factors, 1.2 * top * 0.16 * ax.figure.dpi / ax.bbox.height)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: summary.times(y)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.axhline(factors[-1], color=soft(), linestyle=BROKEN, linewidth=0.9)
    where = (0.01, factors[-1])
    note(ax, "longest tested", where, ("axes fraction", "data"), (0, 3), fontsize="x-small", color=soft())
    draw_never(ax, never, high, right, appearance)
    name_points(ax, named)


def ends_of(times: Sequence[Spread]) -> tuple[float, float]:
    """The times that the axis shows, with some room around them."""
    ends = numbers([end for s in times for end in (s.low, s.high) if end > 0])
    ends = ends[np.isfinite(ends)]
    if not len(ends):
        return 1.0, 10.0
    room = max(1.15, (ends.max() / ends.min()) ** 0.12)
    return float(ends.min() / room), float(ends.max() * room)


def apart(ticks: Sequence[float], least: float) -> list[float]:
    """The ticks that stand so many doublings apart, so that their words have room; the first and the last always do."""
    kept = list(ticks[:1])
    for tick in ticks[1:-1]:
        if min(np.log2(tick / kept[-1]), np.log2(ticks[-1] / tick)) >= least:
            kept.append(tick)
    return [*kept, *ticks[1:][-1:]]


def shares(ax: Axes, never: Sequence[Headline]) -> list[str]:
    """What is said of each that has not learned: its name, and on how many seeds that rests."""
    return [f"{short(s.label, 14)}:{' ' if width_of(ax) > 1.8 else chr(10)}0 of {s.seeds} learned" for s in never]


def edge_of(ax: Axes, low: float, high: float, never: Sequence[Headline]) -> float:
    """Where the axis ends: behind a strip for those that have not learned, wide enough for its words."""
    if not never:
        return high
    longest = max(len(line) for words in shares(ax, never) for line in words.split("\n"))
    share = min(0.5, (longest + 4) / letters(width_of(ax), "x-small"))
    return high * (high / low) ** (share / (1 - share))


def draw_never(ax: Axes, never: Sequence[Headline], high: float, right: float, appearance: dict[str, Look]) -> None:
    if not never:
        return
    ax.axvspan(high, right, color=GRID, alpha=0.45, linewidth=0)
    x = high * (right / high) ** 0.12
    across = ax.get_xaxis_transform()
    for place, (s, words) in enumerate(zip(never, shares(ax, never), strict=True)):
        own, y = appearance[s.label], 0.9 - 0.8 * (place + 0.5) / len(never)
        group = f"encoding-{own.place}"
        ax.plot(
            [x], [y], color=own.color, marker=own.marker, linestyle="none", markerfacecolor=paper(), gid=group,
            transform=across, label=short(s.label),
        )  # fmt: skip
        note(ax, words, (x, y), across, (5, 0), fontsize="x-small", va="center", color=ink())
