"""Figures of what was measured: beyond the trained length, while learning, without positions, and by place in a text.

Each takes the records that one wants to see, of `posenc.lab.load(folder, what="records")`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from posenc.foreign import near, quoted
from posenc.lab.appearance import places, short
from posenc.lab.results import statistics, summary
from posenc.lab.results.figures import layout
from posenc.lab.results.figures.arrays import write_cells
from posenc.lab.results.figures.layout import Size
from posenc.lab.results.figures.style import BROKEN, NARROW, SEQUENTIAL, Look, ink, look, soft, styled
from posenc.lab.results.summary import Record, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_POINTS = 80
"""Points of a curve at most: more cannot be seen, and make the page slow to open."""


@styled
def looks(records: Sequence[Record]) -> dict[str, Look]:
    """Encoding -> its look, which goes by its spec, whatever a person calls it."""
    runs = [(label, run.get("label"), summary.spec_of(run)) for label, run in summary.labelled(records)]
    specs = {label: label.replace(own or spec, spec, 1) for label, own, spec in runs}
    looked = places(specs.values())
    return {label: look(looked[spec]) for label, spec in specs.items()}


def checked(records: Sequence[Record]) -> Sequence[Record]:
    """The records. Raises ValueError for what is no list of them, such as a table."""
    if not isinstance(records, (list, tuple)):
        raise ValueError(
            f"figures are drawn from a list of records, posenc.lab.load(folder, what='records'), or some of them; got "
            f"{type(records).__name__}"
        )
    return records


def task_among(records: Sequence[Record], task: str | None) -> str:
    """The task that is meant. Raises ValueError for one that there is not, and where none of several is given."""
    known = summary.tasks(checked(records))
    if task is None and len(known) == 1:
        return known[0]
    if task not in known:
        asked = "no task is given" if task is None else f"no results of the task {quoted(task)}"
        raise ValueError(f"{asked}; there are: {', '.join(known) or 'none at all'}{near(task, known)}")
    return task


def chosen(asked: str | Sequence[str] | None, known: Sequence[str], option: str) -> list[str]:
    """The panels that are asked for, all of them where nothing is. Raises ValueError for one that there is not."""
    names = list(known) if asked is None else [asked] if isinstance(asked, str) else list(asked)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ValueError(f"{option} must be among {', '.join(known)}; got {quoted(wrong[0] if wrong else names)}")
    return names


@styled
def extrapolation(
    records: Sequence[Record],
    task: str | None = None,
    *,
    measure: str | Sequence[str] | None = None,
    **size: "Unpack[Size]",
) -> Figure | None:
    """What is left at lengths beyond the trained one: the median over the seeds that learned, with its interval.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    measure        a panel for each: exact_match, or for text perplexity_ratio and sliding_bits_per_byte (one of the
                   two in a figure of less than 5 inches)
    size           width, height (inches; letters and lines are smaller below 5), title (its own words, or "" for
                   none), ax (axes to draw into, one for each panel; their lines carry names for `ax.legend()`)

    Encodings that did not learn the task have no line. None where no lengths were measured.

    Raises ValueError for a task or a measure that there is not, for a table, and for other axes.
    """
    task = task_among(records, task)
    results = summary.results(records, task)
    if not any(result.lengths() for result in results):
        return None
    text = any(result.is_text for result in results)
    possible = ("perplexity_ratio", "sliding_bits_per_byte") if text else ("exact_match",)
    if measure is None and (size.get("width") or NARROW) < NARROW:
        measure = possible[0]
    shown = chosen(measure, possible, "measure")
    on = layout.sheet(len(shown), len(shown), (9, 4.3), f"{task}: beyond the trained length", **size)
    appearance, learned = looks(records), [result for result in results if result.learned]
    for ax, name in zip(on.axes, shown, strict=True):
        curves_by_length(ax, learned, appearance, name, 1.0 if text else 100.0, log=text)
        ylabel, xlabel = summary.REACHES[name]
        ax.set(xlabel=xlabel, ylabel=ylabel)
        if name == "exact_match":
            ax.set_ylim(-4, 106)
        if name == "perplexity_ratio":
            fit_ratios(ax, learned)
        layout.mark_trained(ax, summary.trained_lengths(results), above=True)
        if not learned:
            words, middle = "no encoding learned the task", {"ha": "center", "va": "center", "color": soft()}
            ax.text(0.5, 0.5, words, middle, transform=ax.transAxes)
    lines = [layout.handle(r.label, appearance[r.label]) for r in learned]
    missing = [f"{short(r.label)}: {summary.NOT_LEARNED}" for r in results if not r.learned]
    on.legend([*lines, *(Line2D([], [], linestyle="none", label=words) for words in missing)])
    return on.figure


def fit_ratios(ax: Axes, learned: Sequence[Result]) -> None:
    """Ratios of perplexity from below 1 to the highest, on a logarithmic axis where they grow large."""
    ratios = [s.high for r in learned for _, _, s in r.beyond("perplexity_ratio") if np.isfinite(s.high)]
    top = max([1.5, *ratios])
    ax.axhline(1, color=soft(), linewidth=1)
    if top > 1.8:
        ax.set_yscale("log")
        layout.plain_log(ax.yaxis)
    ax.set_ylim(0.9, top * 1.15)


def curves_by_length(
    ax: Axes, results: Sequence[Result], appearance: dict[str, Look], measure: str, unit: float, log: bool = False
) -> None:
    lengths = sorted({length for result in results for length, _ in result.lengths()})
    if not lengths:
        return
    factors = {length: factor for result in results for length, factor in result.lengths()}
    scale: Callable[[Any], Any] = np.log2 if log else np.asarray
    for place, result in enumerate(results):
        known = [
            (length, spread) for length, _ in result.lengths() if (spread := result.at(length, measure)) is not None
        ]
        if not known:
            continue
        x = np.array([length for length, _ in known], dtype=float)
        low, middle, high = summary.numbers([(s.low, s.median, s.high) for _, s in known]).T * unit
        own = appearance[result.label]
        # Intervals at one length stand one inside the other, so that none is hidden.
        ax.vlines(x, low, high, color=own.color, linewidth=2 + 8 * (1 - place / len(results)), alpha=0.35, gid=own.gid)
        # Under broken lines of equal scores a whole one is seen.
        ax.plot(x, middle, **own.line, zorder=1.9 if own.dashes == "-" else 2.0, label=short(result.label))
    if log:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(lengths))
    ax.xaxis.set_major_formatter(FixedFormatter(words_of_lengths(ax, lengths, factors, scale)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="x", visible=False)


def words_of_lengths(
    ax: Axes, lengths: Sequence[float], factors: dict[float, float | None], scale: Callable[[Any], Any]
) -> list[str]:
    """What stands under each length: lengths that are close to each other keep their tick, and words those that fit."""
    span = float(scale(lengths[-1]) - scale(lengths[0])) or 1.0
    words, last = [], -np.inf
    for length in lengths:
        here, factor = float(scale(length)), factors.get(length)
        shown = (summary.count(length), summary.times(factor) if factor else "")
        fits = here - last > span * (max(map(len, shown)) + 1) / layout.letters(layout.width_of(ax), "small")
        words.append("\n".join(shown) if fits else "")
        last = here if fits else last
    return words


LEARNING = {"loss": 2, "score": 3}
"""What learning is seen in, and the column of a curve that it stands in."""
AGAINST = {"step": (0, "steps"), "cpu_s": (1, "CPU seconds")}


@styled
def learning(
    records: Sequence[Record],
    task: str | None = None,
    *,
    measure: str | Sequence[str] | None = None,
    against: str | Sequence[str] | None = None,
    **size: "Unpack[Size]",
) -> Figure | None:
    """Loss and score against steps and CPU seconds: the median over seeds, and a band for its interval.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    measure        rows of panels: loss (nats), score (exact match, or for text bits per byte)
    against        columns of panels: step, cpu_s (CPU seconds)
    size           as in `extrapolation`; below 5 inches it is the score against steps, unless others are asked for

    None where no curve was kept.

    Raises ValueError for a task, measure or abscissa that there is not, for a table, and for
    other axes.
    """
    task = task_among(records, task)
    results = summary.results(records, task)
    curves = {r.label: [points for run in r.runs if len(points := curve(run))] for r in results}
    if not any(curves.values()):
        return None
    if (size.get("width") or NARROW) < NARROW:
        measure, against = measure or "score", against or "step"
    measures, abscissas = chosen(measure, tuple(LEARNING), "measure"), chosen(against, tuple(AGAINST), "against")
    text = any(result.is_text for result in results)
    rows, columns = len(measures), len(abscissas)
    natural, shared = (9, 5.6 if rows > 1 else 4.0), {"sharex": "col", "sharey": "row"}
    on = layout.sheet(rows * columns, columns, natural, f"{task}: learning", shared=shared, **size)
    appearance, bands = looks(records), {label: band_of(runs) for label, runs in curves.items() if runs}
    notes = {r.label: "" if r.learned else f" ({summary.NOT_LEARNED})" for r in results}
    for place, ax in enumerate(on.axes):
        row, column = divmod(place, columns)
        y, (x, xlabel) = LEARNING[measures[row]], AGAINST[abscissas[column]]
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
            ax.axhline(99, color=soft(), linewidth=0.9, linestyle=BROKEN)
            if column == 0:
                layout.note(ax, "99 %: learned", (0.005, 99), ("axes fraction", "data"), (2, 1))
        losses = np.concatenate([points[:, 2] for runs in curves.values() for points in runs])
        losses = losses[np.isfinite(losses)]
        if measures[row] == "loss" and len(losses) and losses.min() > 0 and losses.max() / losses.min() > 20:
            ax.set_yscale("log")
            layout.plain_log(ax.yaxis)
    on.legend([layout.handle(label, appearance[label], notes[label]) for label, runs in curves.items() if runs])
    return on.figure


def draw_curve(ax: Axes, band: list[np.ndarray], x: int, y: int, unit: float, own: Look, name: str) -> None:
    low, middle, high = band
    if not len(middle):
        return
    across, ends = middle[:, x], (low[:, y] * unit, high[:, y] * unit)
    if not np.array_equal(low, high):
        ax.fill_between(across, *ends, color=own.color, alpha=0.18, linewidth=0, gid=own.gid)
    every = max(1, len(middle) // 6)
    ax.plot(across, middle[:, y] * unit, **own.line, markevery=(own.place % every, every), label=name)


def curve(run: Record) -> np.ndarray:
    """[points, 4]: step, CPU seconds, loss, score; thinned to a number that a reader can see."""
    keys, points = ("step", "cpu_s", "loss", "score"), summary.get(run, "curve") or []
    out = summary.numbers([[summary.number(summary.get(point, key)) for key in keys] for point in points]).reshape(
        -1, 4
    )
    if len(out) > MOST_POINTS:
        out = out[np.unique(np.linspace(0, len(out) - 1, MOST_POINTS).round().astype(int))]
    return out


def band_of(runs: list[np.ndarray]) -> list[np.ndarray]:
    """The low end, the middle and the high end over runs [points, 4], at the steps that all of them have."""
    shared = functools.reduce(np.intersect1d, [points[:, 0] for points in runs])
    stacked = np.stack([points[np.searchsorted(points[:, 0], shared)] for points in runs], axis=-1)
    spreads = [[statistics.spread(cell[~np.isnan(cell)].tolist()) for cell in row] for row in stacked]
    return [
        np.array([[np.nan if s is None else getattr(s, end) for s in row] for row in spreads])
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
    records: Sequence[Record],
    task: str | None = None,
    *,
    kinds: Sequence[str] | None = None,
    **size: "Unpack[Size]",
) -> Figure | None:
    """What a trained model still does at its trained length when position is damaged. The tick is the intact score.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    kinds          a panel for each: intact, removed, shuffled, shifted, swapped
    size           as in `extrapolation`

    None where nothing was ablated.

    Raises ValueError for a task or a kind that there is not, for a table, and for other axes.
    """
    task = task_among(records, task)
    by_label = summary.results(records, task)
    rows = [r for r in by_label if any(isinstance(summary.get(run, "ablation"), dict) for run in r.runs)]
    if not rows:
        return None
    shown = chosen(kinds, tuple(ABLATIONS), "kinds")
    text = any(result.is_text for result in rows)
    natural, shared = (9, 0.3 * len(rows) + 1.35), {"sharex": True, "sharey": True}
    title = f"{task}: what the model loses without its positions"
    on = layout.sheet(len(shown), len(shown), natural, title, shared=shared, **size)
    appearance, largest = looks(records), 0.0
    # Narrow panels have titles of a word to a line, and labels that leave them room.
    narrow = layout.width_of(on.axes[0]) < 1.0
    for ax, kind in zip(on.axes, shown, strict=True):
        ax.set_title(ABLATIONS[kind].replace(" ", "\n") if narrow else ABLATIONS[kind], fontsize="small")
        for row, result in enumerate(rows):
            bar = draw_bar(ax, row, result, kind, 1.0 if text else 100.0, appearance[result.label])
            largest = max(largest, bar)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(MaxNLocator(2 if narrow else 3))
        ax.set_ylim(len(rows) - 0.4, -0.6)
    for ax in on.axes:
        ax.set_xlim(0, 105 if not text else (largest * 1.08 or 1))
    on.axes[0].set_yticks(range(len(rows)), [short(r.label, 14 if narrow else 26) for r in rows])
    on.share("bits per byte (lower is better)" if text else "exact match, %", "x")
    return on.figure


def draw_bar(ax: Axes, row: int, result: Result, kind: str, unit: float, own: Look) -> float:
    """One encoding under one damage, as a bar, or why there is none; returns its length."""
    spread, intact = result.spread("ablation", kind), result.spread("ablation", "intact")
    if spread is None or not np.isfinite(spread.median):
        why = summary.NOT_LEARNED if not result.learned else "cannot be done"
        words = why if len(why) < layout.letters(layout.width_of(ax), "x-small") else summary.NOTHING
        layout.note(ax, words, (0, row), "data", (3, 0), fontsize="x-small", color=soft(), va="center")
        return 0.0
    ax.barh(row, spread.median * unit, height=0.68, color=own.color, gid=own.gid)
    if spread.low != spread.high and np.isfinite(spread.high):
        ax.hlines(row, spread.low * unit, spread.high * unit, color=ink(), linewidth=1.4)
    if intact is not None and np.isfinite(intact.median) and kind != "intact":
        ax.vlines(intact.median * unit, row - 0.42, row + 0.42, color=ink(), linewidth=1)
    return spread.median * unit


@styled
def depths(records: Sequence[Record], task: str | None = None, **size: "Unpack[Size]") -> Figure | None:
    """What share of hidden things is found, by their place and the length, a panel for each encoding that learned.

    records        posenc.lab.load(folder, what="records"), or some of them
    task           which task; the only one, if None
    size           as in `extrapolation`

    A cell is the median over the seeds that learned; the first column is the trained length. None where no task hides
    anything, or no encoding learned it.

    Raises ValueError for a task that there is not, for a table, and for other axes.
    """
    task = task_among(records, task)
    tables = [(result.label, table) for result in summary.results(records, task) if (table := found_by_place(result))]
    if not tables:
        return None
    tables = tables[: layout.MOST_PANELS]
    on = layout.grid_of(len(tables), 3, (3.0, 2.2), f"{task}: found, by place and length, %", **size)
    for ax, (label, table) in zip(on.axes, tables, strict=True):
        lengths, places = (sorted({at[axis] for at in table}) for axis in (0, 1))
        cells = summary.numbers([[table.get((length, place), np.nan) for length in lengths] for place in places]) * 100
        ax.imshow(cells, cmap=SEQUENTIAL, vmin=0, vmax=100, aspect="auto", interpolation="none")
        ax.set_title(short(label, 28))
        ax.set_xticks(range(len(lengths)), [summary.count(length) for length in lengths])
        ax.set_yticks(range(len(places)), [f"{100 * place:.0f}" for place in places])
        ax.grid(visible=False)
        if 4 * len(lengths) <= layout.letters(layout.width_of(ax), "x-small"):
            write_cells(ax, cells, "{:.0f}", lambda value: value < 55)
    on.share("length, symbols", "x")
    on.share("place in the text, %", "y")
    return on.figure


DepthTable = dict[tuple[float, float], float]
"""(length, depth) -> share of sequences answered without a mistake."""


def found_by_place(result: Result) -> DepthTable:
    """The medians over the seeds that learned; empty where there are none, or nothing is hidden."""
    seen: dict[tuple[float, float], list[float]] = {}
    for run in result.learned:
        for entry in summary.get(run, "depths") or []:
            length, depth, share = (
                summary.number(summary.get(entry, name)) for name in ("length", "depth", "exact_match")
            )
            if length is not None and depth is not None and share is not None:
                seen.setdefault((length, depth), []).append(share)
    return {at: spread.median for at, shares in seen.items() if (spread := statistics.spread(shares))}
