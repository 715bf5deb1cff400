"""Draw scores: beyond the trained length, during training, of ablations, and by the answer's place.

Each function takes records of `posenc.lab.load(folder, what="records")`, or some of them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from posenc.foreign import quote, suggestion
from posenc.lab.appearance import places, short
from posenc.lab.results import statistics, summary
from posenc.lab.results.figures import layout
from posenc.lab.results.figures.arrays import write_cells
from posenc.lab.results.figures.layout import Size
from posenc.lab.results.figures.style import END_LINE, NARROW, SEQUENTIAL, Look, ink, look, soft, styled
from posenc.lab.results.summary import Record, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_POINTS = 80
"""The most points of a curve; more would only make the page slow to open."""


@styled
def looks(records: Sequence[Record]) -> dict[str, Look]:
    """Return encoding -> its look, which depends on its spec and not on its label."""
    runs = [(label, run.get("label"), summary.spec_of(run)) for label, run in summary.labelled_records(records)]
    specs = {label: label.replace(own_label or spec, spec, 1) for label, own_label, spec in runs}
    indices = places(specs.values())
    return {label: look(indices[spec]) for label, spec in specs.items()}


def check_records(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records. Raises ValueError for anything but a list of them, such as a table."""
    if not isinstance(records, (list, tuple)):
        raise ValueError(
            f"figures are drawn from a list of records, posenc.lab.load(folder, what='records'), or some of them; got "
            f"{type(records).__name__}"
        )
    return records


def resolve_task(records: Sequence[Record], task: str | None) -> str:
    """Return the task, by default the only one. Raises ValueError for an unknown task, and for none of several."""
    names = summary.tasks(check_records(records))
    if task is None and len(names) == 1:
        return names[0]
    if task not in names:
        problem = "no task is given" if task is None else f"no results of the task {quote(task)}"
        raise ValueError(f"{problem}; there are: {', '.join(names) or 'none at all'}{suggestion(task, names)}")
    return task


def select_panels(selection: str | Sequence[str] | None, choices: Sequence[str], option: str) -> list[str]:
    """Return the selected panels, by default all. Raises ValueError for an unknown one."""
    names = list(choices) if selection is None else [selection] if isinstance(selection, str) else list(selection)
    unknown = [name for name in names if name not in choices]
    if unknown or not names:
        raise ValueError(f"{option} must be among {', '.join(choices)}; got {quote(unknown[0] if unknown else names)}")
    return names


@styled
def extrapolation(
    records: Sequence[Record],
    task: str | None = None,
    *,
    measure: str | Sequence[str] | None = None,
    **size: "Unpack[Size]",
) -> Figure | None:
    """Draw scores at lengths beyond the trained one: medians over the seeds that learned, with intervals.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    measure        a panel for each: exact_match, or for text perplexity_ratio and sliding_bits_per_byte (one of the
                   two in a figure of less than 5 inches)
    size           width, height (inches; letters and lines are smaller below 5), title ("" for none), ax (axes to draw
                   into, one for each panel; their lines have names for `ax.legend()`)

    Encodings that did not learn the task have no line. None if no lengths were measured.

    Raises ValueError for an unknown task or measure, for a table, and for a wrong number of axes.
    """
    task = resolve_task(records, task)
    results = summary.results(records, task)
    if not any(result.lengths() for result in results):
        return None
    text = any(result.is_text for result in results)
    possible = ("perplexity_ratio", "sliding_bits_per_byte") if text else ("exact_match",)
    if measure is None and (size.get("width") or NARROW) < NARROW:
        measure = possible[0]
    measures = select_panels(measure, possible, "measure")
    sheet = layout.sheet(len(measures), len(measures), (9, 4.3), f"{task}: beyond the trained length", **size)
    appearance, learned = looks(records), [result for result in results if result.learned]
    for ax, name in zip(sheet.axes, measures, strict=True):
        draw_length_curves(ax, learned, appearance, name, 1.0 if text else 100.0, log=text)
        ylabel, xlabel = summary.SCORE_AXES[name]
        ax.set(xlabel=xlabel, ylabel=ylabel)
        if name == "exact_match":
            ax.set_ylim(-4, 106)
        if name == "perplexity_ratio":
            fit_ratios(ax, learned)
        layout.mark_trained(ax, summary.trained_lengths(results), on_top=True)
        if not learned:
            words, middle = "no encoding learned the task", {"ha": "center", "va": "center", "color": soft()}
            ax.text(0.5, 0.5, words, middle, transform=ax.transAxes)
    lines = [layout.legend_handle(r.label, appearance[r.label]) for r in learned]
    notes = [f"{short(r.label)}: {summary.NOT_LEARNED}" for r in results if not r.learned]
    sheet.legend([*lines, *(Line2D([], [], linestyle="none", label=words) for words in notes)])
    return sheet.figure


def fit_ratios(ax: Axes, learned: Sequence[Result]) -> None:
    """Set the limits of an axis of perplexity ratios; it is logarithmic if they grow large."""
    ratios = [s.high for r in learned for _, _, s in r.extrapolation("perplexity_ratio") if np.isfinite(s.high)]
    top = max([1.5, *ratios])
    ax.axhline(1, color=soft(), linewidth=1)
    if top > 1.8:
        ax.set_yscale("log")
        layout.plain_log(ax.yaxis)
    ax.set_ylim(0.9, top * 1.15)


def draw_length_curves(
    ax: Axes, results: Sequence[Result], appearance: dict[str, Look], measure: str, unit: float, log: bool = False
) -> None:
    lengths = sorted({length for result in results for length, _ in result.lengths()})
    if not lengths:
        return
    factors = {length: factor for result in results for length, factor in result.lengths()}
    scale: Callable[[Any], Any] = np.log2 if log else np.asarray
    for place, result in enumerate(results):
        estimates = [
            (length, estimate) for length, _ in result.lengths() if (estimate := result.at(length, measure)) is not None
        ]
        if not estimates:
            continue
        x = np.array([length for length, _ in estimates], dtype=float)
        low, middle, high = summary.float_array([(s.low, s.median, s.high) for _, s in estimates]).T * unit
        style = appearance[result.label]
        # Intervals at one length are drawn one inside the other, so that none is hidden.
        width = 2 + 8 * (1 - place / len(results))
        ax.vlines(x, low, high, color=style.color, linewidth=width, alpha=0.35, gid=style.gid)
        # A solid line stays visible below dashed lines of equal scores.
        ax.plot(x, middle, **style.line, zorder=1.9 if style.dashes == "-" else 2.0, label=short(result.label))
    if log:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(lengths))
    ax.xaxis.set_major_formatter(FixedFormatter(length_labels(ax, lengths, factors, scale)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="x", visible=False)


def length_labels(
    ax: Axes, lengths: Sequence[float], factors: dict[float, float | None], scale: Callable[[Any], Any]
) -> list[str]:
    """Return the tick label of each length; of lengths close together only some have a label."""
    span = float(scale(lengths[-1]) - scale(lengths[0])) or 1.0
    letter = span / layout.letters(layout.axes_width(ax), "small")
    words, last = [], -np.inf
    for length in lengths:
        position, factor = float(scale(length)), factors.get(length)
        lines = (summary.count(length), summary.times(factor) if factor else "")
        fits = position - last > (max(map(len, lines)) + 1) * letter
        words.append("\n".join(lines) if fits else "")
        last = position if fits else last
    return words


LEARNING = {"loss": 2, "score": 3}
"""Measure -> its column in a curve."""
ABSCISSAS = {"step": (0, "steps"), "cpu_s": (1, "CPU seconds")}


@styled
def learning(
    records: Sequence[Record],
    task: str | None = None,
    *,
    measure: str | Sequence[str] | None = None,
    against: str | Sequence[str] | None = None,
    **size: "Unpack[Size]",
) -> Figure | None:
    """Draw loss and score against steps and CPU seconds: medians over seeds, with intervals as bands.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    measure        rows of panels: loss (nats), score (exact match, or for text bits per byte)
    against        columns of panels: step, cpu_s (CPU seconds)
    size           as in `extrapolation`; below 5 inches the default is the score against steps

    None if no record has a curve.

    Raises ValueError for an unknown task, measure or abscissa, for a table, and for a wrong number of axes.
    """
    task = resolve_task(records, task)
    results = summary.results(records, task)
    curves = {r.label: [points for run in r.runs if len(points := run_curve(run))] for r in results}
    if not any(curves.values()):
        return None
    if (size.get("width") or NARROW) < NARROW:
        measure, against = measure or "score", against or "step"
    measures = select_panels(measure, tuple(LEARNING), "measure")
    abscissas = select_panels(against, tuple(ABSCISSAS), "against")
    text = any(result.is_text for result in results)
    rows, columns = len(measures), len(abscissas)
    natural, axis_options = (9, 5.6 if rows > 1 else 4.0), {"sharex": "col", "sharey": "row"}
    sheet = layout.sheet(rows * columns, columns, natural, f"{task}: learning", subplot_options=axis_options, **size)
    appearance, bands = looks(records), {label: seed_band(runs) for label, runs in curves.items() if runs}
    notes = {r.label: "" if r.learned else f" ({summary.NOT_LEARNED})" for r in results}
    for place, ax in enumerate(sheet.axes):
        row, column = divmod(place, columns)
        y, (x, xlabel) = LEARNING[measures[row]], ABSCISSAS[abscissas[column]]
        unit = 100.0 if measures[row] == "score" and not text else 1.0
        for label, band in bands.items():
            draw_curve(ax, band, x, y, unit, appearance[label], f"{short(label)}{notes[label]}")
        if row == rows - 1:
            ax.set_xlabel(xlabel)
        if column == 0:
            score = "held-out bits per byte" if text else "held-out exact match, %"
            ax.set_ylabel("training loss, nats" if measures[row] == "loss" else score)
        if measures[row] == "score" and not text:
            ax.set_ylim(-4, 106)
            ax.axhline(99, color=soft(), linewidth=0.9, linestyle=END_LINE)
            if column == 0:
                layout.note(ax, "99 %: learned", (0.005, 99), ("axes fraction", "data"), (2, 1))
        losses = np.concatenate([points[:, 2] for runs in curves.values() for points in runs])
        losses = losses[np.isfinite(losses)]
        if measures[row] == "loss" and len(losses) and losses.min() > 0 and losses.max() / losses.min() > 20:
            ax.set_yscale("log")
            layout.plain_log(ax.yaxis)
    sheet.legend([layout.legend_handle(label, appearance[label], notes[label]) for label in bands])
    return sheet.figure


def draw_curve(ax: Axes, band: list[np.ndarray], x: int, y: int, unit: float, style: Look, name: str) -> None:
    low, middle, high = band
    if not len(middle):
        return
    x_values, ends = middle[:, x], (low[:, y] * unit, high[:, y] * unit)
    if not np.array_equal(low, high):
        ax.fill_between(x_values, *ends, color=style.color, alpha=0.18, linewidth=0, gid=style.gid)
    step = max(1, len(middle) // 6)
    ax.plot(x_values, middle[:, y] * unit, **style.line, markevery=(style.place % step, step), label=name)


def run_curve(run: Record) -> np.ndarray:
    """Return a curve [points, 4] of at most MAX_POINTS: step, CPU seconds, loss, score."""
    keys, points = ("step", "cpu_s", "loss", "score"), summary.get(run, "curve") or []
    out = summary.float_array([[summary.number(summary.get(point, key)) for key in keys] for point in points]).reshape(
        -1, 4
    )
    if len(out) > MAX_POINTS:
        out = out[np.unique(np.linspace(0, len(out) - 1, MAX_POINTS).round().astype(int))]
    return out


def seed_band(runs: list[np.ndarray]) -> list[np.ndarray]:
    """Return low end, median and high end over runs [points, 4], at their common steps."""
    steps = functools.reduce(np.intersect1d, [points[:, 0] for points in runs])
    stack = np.stack([points[np.searchsorted(points[:, 0], steps)] for points in runs], axis=-1)
    estimates = [[statistics.estimate(cell[~np.isnan(cell)].tolist()) for cell in row] for row in stack]
    return [
        np.array([[np.nan if s is None else getattr(s, end) for s in row] for row in estimates])
        for end in ("low", "median", "high")
    ]


ABLATIONS = {
    "intact": "as trained",
    "removed": "position removed",
    "shuffled": "positions shuffled",
    "shifted": "positions shifted",
    "swapped": "two swapped",
}


@styled
def ablation(
    records: Sequence[Record], task: str | None = None, *, kinds: Sequence[str] | None = None, **size: "Unpack[Size]"
) -> Figure | None:
    """Draw the score of ablated positions at the trained length, with a tick at the intact score.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    kinds          a panel for each: intact, removed, shuffled, shifted, swapped
    size           as in `extrapolation`

    None if no record has an ablation.

    Raises ValueError for an unknown task or kind, for a table, and for a wrong number of axes.
    """
    task = resolve_task(records, task)
    by_label = summary.results(records, task)
    rows = [r for r in by_label if any(isinstance(summary.get(run, "ablation"), dict) for run in r.runs)]
    if not rows:
        return None
    panels = select_panels(kinds, tuple(ABLATIONS), "kinds")
    text = any(result.is_text for result in rows)
    natural, axis_options = (9, 0.3 * len(rows) + 1.35), {"sharex": True, "sharey": True}
    title = f"{task}: what the model loses without its positions"
    sheet = layout.sheet(len(panels), len(panels), natural, title, subplot_options=axis_options, **size)
    appearance, largest = looks(records), 0.0
    # Narrow panels have titles of one word a line, and short labels.
    narrow = layout.axes_width(sheet.axes[0]) < 1.0
    for ax, kind in zip(sheet.axes, panels, strict=True):
        ax.set_title(ABLATIONS[kind].replace(" ", "\n") if narrow else ABLATIONS[kind], fontsize="small")
        for row, result in enumerate(rows):
            bar = draw_bar(ax, row, result, kind, 1.0 if text else 100.0, appearance[result.label])
            largest = max(largest, bar)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(MaxNLocator(2 if narrow else 3))
        ax.set_ylim(len(rows) - 0.4, -0.6)
    for ax in sheet.axes:
        ax.set_xlim(0, 105 if not text else (largest * 1.08 or 1))
    sheet.axes[0].set_yticks(range(len(rows)), [short(r.label, 14 if narrow else 26) for r in rows])
    sheet.share("bits per byte (lower is better)" if text else "exact match, %", "x")
    return sheet.figure


def draw_bar(ax: Axes, row: int, result: Result, kind: str, unit: float, style: Look) -> float:
    """Draw the bar of an encoding under an ablation, or why there is none; return its length."""
    estimate, intact = result.estimate("ablation", kind), result.estimate("ablation", "intact")
    if estimate is None or not np.isfinite(estimate.median):
        reason = summary.NOT_LEARNED if not result.learned else "cannot be done"
        words = reason if len(reason) < layout.letters(layout.axes_width(ax), "x-small") else summary.DASH
        layout.note(ax, words, (0, row), "data", (3, 0), fontsize="x-small", color=soft(), va="center")
        return 0.0
    ax.barh(row, estimate.median * unit, height=0.68, color=style.color, gid=style.gid)
    if estimate.low != estimate.high and np.isfinite(estimate.high):
        ax.hlines(row, estimate.low * unit, estimate.high * unit, color=ink(), linewidth=1.4)
    if intact is not None and np.isfinite(intact.median) and kind != "intact":
        ax.vlines(intact.median * unit, row - 0.42, row + 0.42, color=ink(), linewidth=1)
    return estimate.median * unit


@styled
def depths(records: Sequence[Record], task: str | None = None, **size: "Unpack[Size]") -> Figure | None:
    """Draw the share of hidden keys found, by place and length, a panel for each encoding that learned.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    size           as in `extrapolation`

    A cell is the median over the seeds that learned; the first column is the trained length. None where no task hides
    anything, or no encoding learned it.

    Raises ValueError for an unknown task, for a table, and for a wrong number of axes.
    """
    task = resolve_task(records, task)
    tables = [(result.label, table) for result in summary.results(records, task) if (table := depth_scores(result))]
    if not tables:
        return None
    tables = tables[: layout.MAX_PANELS]
    sheet = layout.panel_grid(len(tables), 3, (3.0, 2.2), f"{task}: found, by place and length, %", **size)
    for ax, (label, table) in zip(sheet.axes, tables, strict=True):
        lengths, places = (sorted({at[axis] for at in table}) for axis in (0, 1))
        shares = [[table.get((length, place), np.nan) for length in lengths] for place in places]
        cells = summary.float_array(shares) * 100
        ax.imshow(cells, cmap=SEQUENTIAL, vmin=0, vmax=100, aspect="auto", interpolation="none")
        ax.set_title(short(label, 28))
        ax.set_xticks(range(len(lengths)), [summary.count(length) for length in lengths])
        ax.set_yticks(range(len(places)), [f"{100 * place:.0f}" for place in places])
        ax.grid(visible=False)
        if 4 * len(lengths) <= layout.letters(layout.axes_width(ax), "x-small"):
            write_cells(ax, cells, "{:.0f}", lambda value: value < 55)
    sheet.share("length, symbols", "x")
    sheet.share("place in the text, %", "y")
    return sheet.figure


DepthTable = dict[tuple[float, float], float]
"""(length, depth) -> share of sequences answered without a mistake."""


def depth_scores(result: Result) -> DepthTable:
    """Return the medians over the seeds that learned; empty without such seeds or depths."""
    shares_at: dict[tuple[float, float], list[float]] = {}
    for run in result.learned:
        for entry in summary.get(run, "depths") or []:
            length, depth, share = (
                summary.number(summary.get(entry, name)) for name in ("length", "depth", "exact_match")
            )
            if length is not None and depth is not None and share is not None:
                shares_at.setdefault((length, depth), []).append(share)
    return {at: estimate.median for at, shares in shares_at.items() if (estimate := statistics.estimate(shares))}
