"""The headline: how fast an encoding learns a task, and how far beyond the trained length it then carries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc.lab.appearance import short
from posenc.lab.results import summary
from posenc.lab.results.figures.layout import Size, letters, name_points, note, plain_log, sheet, width_of, wrapped
from posenc.lab.results.figures.measured import checked, looks, task_among
from posenc.lab.results.figures.style import BROKEN, Look, soft, styled
from posenc.lab.results.summary import Headline, Record, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack


@styled
def headline(records: Sequence[Record], task: str | None = None, **size: "Unpack[Size]") -> Figure | None:
    """Learning speed against reach: quick encodings stand to the left, those that carry far at the top.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           one task; None draws a panel for each that has an answer to be right or wrong (text has none)
    size           as in `extrapolation`

    A mark stands at the medians, its bars are their intervals: of time over the seeds that learned, of reach over all
    seeds, of which one that has not learned carries no further than trained. The reach is the multiple of
    the trained length up to which at least 90 % of answers are right, of those that were tested; 1 is no further than
    trained. Encodings of which no seed learned are named below the axis; where some did not, their share is written
    beside the mark.

    None where no task was measured in this way.

    Raises ValueError for a task that there is not, for a table, and for other axes.
    """
    tasks = summary.tasks(checked(records)) if task is None else [task_among(records, task)]
    shown = {name: of_task for name in tasks if tested_beyond(of_task := summary.results(records, name))}
    if not shown:
        return None
    columns = max(1, min(len(shown), 3, int((size.get("width") or 9) / 1.5)))
    natural = max(5.2, 4.0 * columns), 3.6 * -(-len(shown) // columns) + 0.4
    on = sheet(len(shown), columns, natural, "How fast it learns, and how far it carries", **size)
    appearance = looks(records)
    for place, (ax, (name, of_task)) in enumerate(zip(on.axes, shown.items(), strict=True)):
        factors = sorted({1.0, *(factor for r in of_task for _, factor in r.lengths() if factor and factor > 1)})
        standings = [row for row in summary.headline(records) if row.task == name]
        draw_standings(ax, standings, factors, appearance)
        ax.set_title(short(name, letters(width_of(ax), "medium")))
        never = [f"{short(s.label, 20)} (0 of {s.seeds})" for s in standings if not s.learned]
        words = [f"not learned: {', '.join(never)}"] if never else []
        # A label of the whole figure would stand in the legend.
        ax.set_xlabel("\n".join(["CPU seconds to 99 %", *(wrapped(line, width_of(ax)) for line in words)]))
        if place % columns == 0 or not on.own:
            ax.set_ylabel("reach, trained lengths")
    return on.figure


def tested_beyond(results: Sequence[Result]) -> bool:
    """Whether answers were right or wrong at lengths past the trained one."""
    return not any(r.is_text for r in results) and any(f and f > 1 for r in results for _, f in r.lengths())


def draw_standings(
    ax: Axes, standings: Sequence[Headline], factors: Sequence[float], appearance: dict[str, Look]
) -> None:
    """The encodings of one task."""
    timed = [(s, time, s.reach) for s in standings if (time := s.cpu_seconds) is not None and s.reach is not None]
    names = []
    # In the scales of the axes: the reach doubles from step to step, and so does the time.
    top = np.log2(max(factors[-1], 1.2))
    for place, (s, time, reach) in enumerate(timed):
        own = appearance[s.label]
        # A reach below 1, of seeds that have not learned, is shown as 1.
        x, left, right = summary.numbers([time.median, time.low, time.high])
        y, foot, head = np.maximum(summary.numbers([reach.median, reach.low, reach.high]), 1.0)
        # Reaches are few, so many encodings share one: their intervals lie one inside the other.
        bar: dict[str, Any] = {"color": own.color, "linewidth": 1 + 6 * (1 - place / len(timed)), "alpha": 0.5}
        ax.hlines(y, left, right, **bar, gid=own.gid)
        ax.vlines(x, foot, head, **bar, gid=own.gid)
        ax.plot([x], [y], **dict[str, Any](own.line, linestyle="none"), label=short(s.label))
        share = f", {s.learned} of {s.seeds}" if s.learned < s.seeds else ""
        names.append((x, y, f"{short(s.label, 20)}{share}", own.gid))
    ax.set_xscale("log")
    ax.set_yscale("log", base=2)
    ax.margins(x=0.12)
    plain_log(ax.xaxis)
    low, high = ax.get_xlim()
    ticks = [x for x in ax.xaxis.get_major_locator()() if low <= x <= high]
    ax.xaxis.set_major_locator(FixedLocator(apart(ticks, np.log2(high / low) * 0.3 / width_of(ax))))
    ax.set_ylim(2 ** (-0.09 * top), 2 ** (1.14 * top))
    ax.yaxis.set_major_locator(FixedLocator(apart(factors, 1.2 * top * 0.16 * ax.figure.dpi / ax.bbox.height)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: summary.times(y)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.axhline(factors[-1], color=soft(), linestyle=BROKEN, linewidth=0.9)
    small = {"fontsize": "x-small", "color": soft()}
    note(ax, "longest tested", (0.01, factors[-1]), ("axes fraction", "data"), (0, 3), **small)
    name_points(ax, names)


def apart(ticks: Sequence[float], least: float) -> list[float]:
    """The ticks that stand so many doublings apart, so that their words have room; the first and the last always do."""
    kept = list(ticks[:1])
    for tick in ticks[1:-1]:
        if min(np.log2(tick / kept[-1]), np.log2(ticks[-1] / tick)) >= least:
            kept.append(tick)
    return [*kept, *ticks[1:][-1:]]
