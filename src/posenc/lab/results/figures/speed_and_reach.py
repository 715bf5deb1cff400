"""Draw the headline: how fast encodings learn, and how far beyond the trained length they carry."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc.lab.appearance import short
from posenc.lab.results import summary
from posenc.lab.results.figures.layout import Size, axes_width, letters, name_points, note, plain_log, sheet, wrap_title
from posenc.lab.results.figures.scores import check_records, looks, resolve_task
from posenc.lab.results.figures.style import END_LINE, Look, soft, styled
from posenc.lab.results.summary import Headline, Record, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack


@styled
def headline(records: Sequence[Record], task: str | None = None, **size: "Unpack[Size]") -> Figure | None:
    """Draw learning speed against reach: fast encodings to the left, those that carry far at the top.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           one task; None draws a panel for each exact task (text has none)
    size           as in `extrapolation`

    A mark is at the medians, its bars are their intervals: of time over the seeds that learned, of reach over all
    seeds. The reach is the largest tested multiple of the trained length up to which at least 90 % of answers are
    right; it is 1 for a seed that carries no further or has not learned. Encodings without a seed that learned are
    named below the axis; if some seeds learned, their share is beside the mark.

    None if no task has scores beyond the trained length.

    Raises ValueError for an unknown task, for a table, and for a wrong number of axes.
    """
    tasks = summary.tasks(check_records(records)) if task is None else [resolve_task(records, task)]
    results_of = {name: results for name in tasks if has_extrapolation(results := summary.results(records, name))}
    if not results_of:
        return None
    columns = max(1, min(len(results_of), 3, int((size.get("width") or 9) / 1.5)))
    natural = max(5.2, 4.0 * columns), 3.6 * -(-len(results_of) // columns) + 0.4
    drawn_sheet = sheet(len(results_of), columns, natural, "How fast it learns, and how far it carries", **size)
    appearance = looks(records)
    for place, (ax, (name, results)) in enumerate(zip(drawn_sheet.axes, results_of.items(), strict=True)):
        factors = sorted({1.0, *(factor for r in results for _, factor in r.lengths() if factor and factor > 1)})
        standings = [row for row in summary.headline(records) if row.task == name]
        draw_standings(ax, standings, factors, appearance)
        ax.set_title(short(name, letters(axes_width(ax), "medium")))
        failures = [f"{short(s.label, 20)} (0 of {s.seeds})" for s in standings if not s.learned]
        words = [f"not learned: {', '.join(failures)}"] if failures else []
        # A label of the whole figure would overlap the legend.
        ax.set_xlabel("\n".join(["CPU seconds to 99 %", *(wrap_title(line, axes_width(ax)) for line in words)]))
        if place % columns == 0 or not drawn_sheet.is_own:
            ax.set_ylabel("reach, trained lengths")
    return drawn_sheet.figure


def has_extrapolation(results: Sequence[Result]) -> bool:
    """Whether these are results of an exact task at lengths beyond the trained one."""
    return not any(r.is_text for r in results) and any(f and f > 1 for r in results for _, f in r.lengths())


def draw_standings(
    ax: Axes, standings: Sequence[Headline], factors: Sequence[float], appearance: dict[str, Look]
) -> None:
    """Draw the encodings of one task."""
    points = [(s, time, s.reach) for s in standings if (time := s.cpu_seconds) is not None and s.reach is not None]
    names = []
    # Both axes are logarithmic.
    top = np.log2(max(factors[-1], 1.2))
    for place, (s, time, reach) in enumerate(points):
        style = appearance[s.label]
        # A reach of 0, of seeds that have not learned, is drawn as 1.
        x, left, right = summary.float_array([time.median, time.low, time.high])
        y, foot, head = np.maximum(summary.float_array([reach.median, reach.low, reach.high]), 1.0)
        # Many encodings share a reach: their intervals are drawn one inside the other.
        bar: dict[str, Any] = {"color": style.color, "linewidth": 1 + 6 * (1 - place / len(points)), "alpha": 0.5}
        ax.hlines(y, left, right, **bar, gid=style.gid)
        ax.vlines(x, foot, head, **bar, gid=style.gid)
        ax.plot([x], [y], **dict[str, Any](style.line, linestyle="none"), label=short(s.label))
        share = f", {s.learned} of {s.seeds}" if s.learned < s.seeds else ""
        names.append((x, y, f"{short(s.label, 20)}{share}", style.gid))
    ax.set_xscale("log")
    ax.set_yscale("log", base=2)
    ax.margins(x=0.12)
    plain_log(ax.xaxis)
    low, high = ax.get_xlim()
    ticks = [x for x in ax.xaxis.get_major_locator()() if low <= x <= high]
    ax.xaxis.set_major_locator(FixedLocator(spaced_ticks(ticks, np.log2(high / low) * 0.3 / axes_width(ax))))
    ax.set_ylim(2 ** (-0.09 * top), 2 ** (1.14 * top))
    ax.yaxis.set_major_locator(FixedLocator(spaced_ticks(factors, 1.2 * top * 0.16 * ax.figure.dpi / ax.bbox.height)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: summary.times(y)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.axhline(factors[-1], color=soft(), linestyle=END_LINE, linewidth=0.9)
    small = {"fontsize": "x-small", "color": soft()}
    note(ax, "longest tested", (0.01, factors[-1]), ("axes fraction", "data"), (0, 3), **small)
    name_points(ax, names)


def spaced_ticks(ticks: Sequence[float], min_doublings: float) -> list[float]:
    """Return the ticks that are so many doublings apart, always with the first and the last."""
    sparse = list(ticks[:1])
    for tick in ticks[1:-1]:
        if min(np.log2(tick / sparse[-1]), np.log2(ticks[-1] / tick)) >= min_doublings:
            sparse.append(tick)
    return [*sparse, *ticks[1:][-1:]]
