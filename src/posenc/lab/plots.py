"""Figures from records, and from plain arrays; never from live models.

Everything is made with matplotlib's object interface: no pyplot, no display, no global state. A function that draws
records returns None where no record holds what it draws. Each encoding keeps one colour and marker in all figures,
given by order of appearance, so pass the whole list of records and name the task.
"""

import contextlib
import functools
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from posenc.foreign import visible
from posenc.lab import store, summary
from posenc.lab.summary import Record, Result

STYLE = Path(__file__).with_name("posenc.mplstyle")

# Colours that stay apart for colour-blind readers (after Okabe and Ito), on white and on near-black paper.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b8508f", "#d99000", "#3a9ad9", "#4b3b9b", "#6b6b6b")
DARK = ("#4aa3df", "#ff8a3d", "#2fc79a", "#e58fc0", "#f2b134", "#8fd0ff", "#a89bf0", "#b5b5b5")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "★")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))

# The style's own colours; the page gives each a light and a dark value.
INK, SOFT, GRID, PAPER = "#1f2328", "#8b949e", "#dde1e6", "#ffffff"
DIVERGING, SEQUENTIAL = "RdBu_r", "viridis"

# Bounds, so that any number of encodings gives a page that opens.
MOST_PANELS = 24
MOST_POINTS = 80
MOST_HEADS, MOST_LAYERS = 8, 6

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Look:
    """How one encoding is drawn, everywhere."""

    place: int
    color: str
    marker: str
    glyph: str
    dashes: Any


def look(place: int) -> Look:
    # The marker moves on by one each time the colours start again, so that a pair comes back only after 64 encodings.
    colour, shape = place % len(LIGHT), (place + place // len(LIGHT)) % len(MARKERS)
    return Look(place, LIGHT[colour], MARKERS[shape], GLYPHS[shape], DASHES[place // len(LIGHT) % len(DASHES)])


def looks(records: Sequence[Record]) -> dict[str, Look]:
    """Encoding -> its look, by order of appearance."""
    return {label: look(place) for place, label in enumerate(summary.labels(records))}


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw in the project's style, whatever the caller's settings are, and leave those as they were."""

    @functools.wraps(draw)
    def inner(*args: P.args, **options: P.kwargs) -> R:
        with matplotlib.rc_context(fname=STYLE), np.errstate(all="ignore"):
            return draw(*args, **options)

    return inner


def short(label: str, width: int = 30) -> str:
    """A label that fits: without the folders of a path, and with its middle left out if it is still long."""
    label = re.sub(r"[^\s+(),=]*/", "…/", visible(label))
    if len(label) > width:
        label = f"{label[: width // 2 - 1]}…{label[len(label) - (width - width // 2) :]}"
    # matplotlib leaves labels that begin with an underscore out of legends.
    return f" {label}" if label.startswith("_") else label


def wrapped(title: str, inches: float) -> str:
    """A title in as many lines as a figure of this width needs."""
    return "\n".join(textwrap.wrap(visible(title), int((inches - 0.9) * 12)))


def readable(token: Any) -> str:
    """A token as an axis label: blanks and what a font may lack are written out."""
    text = str(token)
    return "␣" if text == " " else text.encode("unicode_escape").decode("ascii")[:8]


def numbers(values: Any) -> np.ndarray:
    """An array of floats in which everything that is not a finite number is NaN, which is drawn as nothing."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)
    return np.where(np.isfinite(array), array, np.nan)


def figure(width: float, height: float, title: str = "") -> Figure:
    out = Figure(figsize=(width, height), layout="constrained")
    if title:
        out.suptitle(title, x=0.01, ha="left")
    return out


def panels(count: int, columns: int, width: float, height: float, title: str) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, each `width` by `height` inches, in rows."""
    columns = max(1, min(columns, count))
    rows = -(-count // columns)
    out = figure(max(columns * width, 4.2), rows * height + 0.45, title)
    axes = [out.add_subplot(rows, columns, place + 1) for place in range(count)]
    return out, axes


def legend(fig: Figure, handles: Sequence[Any], *, columns: int = 4) -> None:
    """A legend under the figure, which grows to make room for it."""
    longest = max((len(handle.get_label()) for handle in handles), default=0)
    columns = max(1, min(columns, len(handles), int(fig.get_figwidth() * 12 / (longest + 7))))
    rows = -(-len(handles) // columns)
    fig.set_figheight(fig.get_figheight() + 0.22 * rows + 0.05)
    fig.legend(handles=handles, loc="outside lower center", ncols=columns)


def handle(label: str, of: Look, note: str = "") -> Line2D:
    drawn = Line2D(
        [], [], color=of.color, marker=of.marker, linestyle=of.dashes, markeredgecolor=PAPER, markeredgewidth=0.6
    )
    drawn.set_label(f"{short(label)}{note}")
    drawn.set_gid(f"encoding-{of.place}")
    return drawn


def missing_handle(label: str) -> Line2D:
    return Line2D([], [], linestyle="none", label=f"{short(label)}: {summary.NOT_LEARNED}")


def mark_trained(ax: Axes, lengths: Iterable[float], *, horizontal: bool = False, above: bool = False) -> None:
    """A dashed line where training ended, with its length in words."""
    lengths = sorted(set(lengths))
    for length in lengths:
        words = f"trained to {summary.count(length)}"
        if horizontal:
            ax.axhline(length, color=INK, linestyle=(0, (4, 3)), linewidth=1)
            # Two lines may be so near that the words of the lower one find no room between them.
            below = length < lengths[-1]
            ax.annotate(
                words,
                (0.995, length),
                xycoords=("axes fraction", "data"),
                xytext=(0, -3 if below else 3),
                textcoords="offset points",
                fontsize=8,
                ha="right",
                va="top" if below else "bottom",
            )
        else:
            ax.axvline(length, color=INK, linestyle=(0, (4, 3)), linewidth=1)
            where: dict[str, Any] = {"xytext": (4, 0), "va": "top"}
            if above:
                where = {"xytext": (0, 2), "ha": "center", "va": "bottom"}
            ax.annotate(
                words,
                (length, 1.0),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=8,
                **where,
            )


def nothing(ax: Axes, words: str) -> None:
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=SOFT)


@styled
def extrapolation(records: Sequence[Record], task: str) -> Figure | None:
    """What is left at lengths beyond the trained one: the median over the seeds that learned, with their range."""
    found = summary.results(records, task)
    if not any(result.lengths() for result in found):
        return None
    appearance = looks(records)
    text = any(result.is_text for result in found)
    fig = figure(9, 4.3, f"{task}: beyond the trained length")
    measures = [
        ("perplexity_ratio", "R: perplexity relative to trained length"),
        ("sliding_bits_per_byte", "bits per byte, sliding windows"),
    ]
    axes = fig.subplots(1, 2, squeeze=False)[0] if text else [fig.add_subplot()]
    learned = [result for result in found if result.learned]
    if text:
        for ax, (measure, what) in zip(axes, measures, strict=True):
            curves_by_length(ax, learned, appearance, measure, 1.0, log=True)
            ax.set(xlabel="window length, bytes", ylabel=what)
        ratios = [s.high for r in learned for _, _, s in r.beyond("perplexity_ratio") if np.isfinite(s.high)]
        top = max([1.5, *ratios])
        axes[0].axhline(1, color=SOFT, linewidth=1)
        if top > 1.8:
            axes[0].set_yscale("log")
            plain_log(axes[0].yaxis)
        axes[0].set_ylim(0.9, top * 1.15)
    else:
        curves_by_length(axes[0], learned, appearance, "exact_match", 100.0)
        axes[0].set(xlabel="length, symbols", ylabel="exact match, %", ylim=(-4, 106))
    for ax in axes:
        mark_trained(ax, summary.trained_lengths(found), above=True)
        if not learned:
            nothing(ax, "no encoding learned the task")
    handles = [handle(r.label, appearance[r.label]) for r in learned]
    legend(fig, handles + [missing_handle(r.label) for r in found if not r.learned])
    return fig


def curves_by_length(
    ax: Axes, found: Sequence[Result], appearance: dict[str, Look], measure: str, unit: float, log: bool = False
) -> None:
    lengths = sorted({length for result in found for length, _ in result.lengths()})
    if not lengths:
        return
    factors = {length: factor for result in found for length, factor in result.lengths()}
    scale: Callable[[Any], Any] = np.log2 if log else np.asarray
    back: Callable[[Any], Any] = np.exp2 if log else np.asarray
    gap = float(np.min(np.diff(scale(np.array(lengths, dtype=float))))) if len(lengths) > 1 else 1.0
    for place, result in enumerate(found):
        # Equal scores would hide each other: every encoding stands a little to the side of its length.
        side = 0.0 if len(found) < 2 else gap * 0.36 * (place / (len(found) - 1) - 0.5)
        points = [
            (length, spread) for length, _ in result.lengths() if (spread := result.at(length, measure)) is not None
        ]
        if not points:
            continue
        x = back(scale(np.array([length for length, _ in points], dtype=float)) + side)
        low, middle, high = (numbers([getattr(s, end) for _, s in points]) * unit for end in ("low", "median", "high"))
        own = appearance[result.label]
        group = f"encoding-{own.place}"
        ax.vlines(x, low, high, color=own.color, linewidth=3, alpha=0.35, gid=group)
        ax.plot(
            x,
            middle,
            color=own.color,
            marker=own.marker,
            linestyle=own.dashes,
            markeredgecolor=PAPER,
            markeredgewidth=0.6,
            gid=group,
        )
    if log:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(lengths))
    # Lengths that stand close to each other keep their tick; only the words of those that fit are written.
    span = float(scale(lengths[-1]) - scale(lengths[0])) or 1.0
    words, last = [], -np.inf
    for length in lengths:
        here = float(scale(length))
        factor = factors.get(length)
        fits = here - last > span * (0.045 if not log else 0.09)
        words.append(f"{summary.count(length)}\n{summary.times(factor) if factor else ''}" if fits else "")
        last = here if fits else last
    ax.xaxis.set_major_formatter(FixedFormatter(words))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="x", visible=False)


def plain_log(axis: Any) -> None:
    """A log axis with plain numbers on it."""
    low, high = axis.get_view_interval()
    few = low > 0 and high / low < 40
    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:g}" if x < 1e4 else f"{x:,.0f}" if x < 1e9 else f"{x:.0e}")
    )
    axis.set_minor_formatter(NullFormatter())


@styled
def learning(records: Sequence[Record], task: str) -> Figure | None:
    """Loss and score against steps and against CPU seconds: each seed thin, the median over seeds bold."""
    found = summary.results(records, task)
    curves = {r.label: [points for run in r.runs if len(points := curve(run))] for r in found}
    if not any(curves.values()):
        return None
    appearance = looks(records)
    text = any(result.is_text for result in found)
    fig = figure(9, 5.6, f"{task}: learning")
    axes = fig.subplots(2, 2, sharex="col", sharey="row")
    unit = 1.0 if text else 100.0
    for label, runs in curves.items():
        own = appearance[label]
        group = f"encoding-{own.place}"
        bold = middle_of(runs)
        for column, x in enumerate((0, 1)):
            for row, (y, scale) in enumerate(((2, 1.0), (3, unit))):
                ax = axes[row][column]
                if len(runs) > 1:
                    for points in runs:
                        ax.plot(
                            points[:, x], points[:, y] * scale, color=own.color, linewidth=0.7, alpha=0.4, gid=group
                        )
                if len(bold):
                    every = max(1, len(bold) // 6)
                    first = own.place % every
                    style = {
                        "color": own.color,
                        "marker": own.marker,
                        "linestyle": own.dashes,
                        "markevery": (first, every),
                        "markersize": 5,
                    }
                    ax.plot(
                        bold[:, x], bold[:, y] * scale, markeredgecolor=PAPER, markeredgewidth=0.5, gid=group, **style
                    )
    axes[0][0].set_ylabel("training loss, nats")
    axes[1][0].set_ylabel("held-out bits per byte" if text else "held-out exact match, %")
    axes[1][0].set_xlabel("steps")
    axes[1][1].set_xlabel("CPU seconds")
    losses = np.concatenate([points[:, 2] for runs in curves.values() for points in runs])
    losses = losses[np.isfinite(losses)]
    if len(losses) and losses.min() > 0 and losses.max() / losses.min() > 20:
        axes[0][0].set_yscale("log")
        plain_log(axes[0][0].yaxis)
    if not text:
        axes[1][0].set_ylim(-4, 106)
        for ax in axes[1]:
            ax.axhline(99, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes[1][0].annotate(
            "99 %: learned",
            (0.005, 99),
            xycoords=("axes fraction", "data"),
            xytext=(2, 1),
            textcoords="offset points",
            fontsize=7.5,
        )
    notes = {r.label: "" if r.learned else f" ({summary.NOT_LEARNED})" for r in found}
    legend(fig, [handle(label, appearance[label], notes[label]) for label, runs in curves.items() if runs])
    return fig


def curve(run: Record) -> np.ndarray:
    """[points, 4]: step, CPU seconds, loss, score; thinned to a number that a reader can see."""
    points = summary.get(run, "curve")
    if not isinstance(points, list) or not points:
        return np.empty((0, 4))
    keys = ("step", "cpu_s", "loss", "score")
    out = numbers(
        [[np.nan if (x := summary.number(summary.get(p, key))) is None else x for key in keys] for p in points]
    )
    if len(out) > MOST_POINTS:
        out = out[np.unique(np.linspace(0, len(out) - 1, MOST_POINTS).round().astype(int))]
    return out


def middle_of(runs: list[np.ndarray]) -> np.ndarray:
    """The median over runs at the steps that all of them have; a run's own curve if it is alone."""
    if len(runs) < 2:
        return runs[0] if runs else np.empty((0, 4))
    shared = functools.reduce(np.intersect1d, [points[:, 0] for points in runs])
    if not len(shared):
        return np.empty((0, 4))
    return np.median([points[np.searchsorted(points[:, 0], shared)] for points in runs], axis=0)


ABLATIONS = {
    "intact": "as trained",
    "removed": "position removed",
    "shuffled": "positions shuffled",
    "shifted": "positions shifted",
    "swapped": "two swapped",
}


@styled
def ablation(records: Sequence[Record], task: str) -> Figure | None:
    """What a trained model still does at its trained length when position is damaged. The tick is the intact score."""
    found = [
        r
        for r in summary.results(records, task)
        if any(isinstance(summary.get(run, "ablation"), dict) for run in r.runs)
    ]
    if not found:
        return None
    appearance = looks(records)
    text = any(result.is_text for result in found)
    unit = 1.0 if text else 100.0
    fig = figure(9, 0.3 * len(found) + 1.35, f"{task}: what the model loses without its positions")
    axes = fig.subplots(1, len(ABLATIONS), sharex=True, sharey=True, squeeze=False)[0]
    largest = 0.0
    for ax, (kind, words) in zip(axes, ABLATIONS.items(), strict=True):
        ax.set_title(words, fontsize=9)
        for row, result in enumerate(found):
            own, spread, intact = (
                appearance[result.label],
                result.spread("ablation", kind),
                result.spread("ablation", "intact"),
            )
            if spread is None or not np.isfinite(spread.median):
                note = summary.NOT_LEARNED if not result.learned else "cannot be done"
                ax.annotate(
                    note, (0, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7, color=SOFT
                )
                continue
            group = f"encoding-{own.place}"
            ax.barh(row, spread.median * unit, height=0.68, color=own.color, gid=group)
            if spread.low != spread.high and np.isfinite(spread.high):
                ax.hlines(row, spread.low * unit, spread.high * unit, color=INK, linewidth=1.4)
            if intact is not None and np.isfinite(intact.median) and kind != "intact":
                ax.vlines(intact.median * unit, row - 0.42, row + 0.42, color=INK, linewidth=1)
            largest = max(largest, spread.median * unit)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_locator(MaxNLocator(3))
    axes[0].set_yticks(range(len(found)), [short(r.label, 26) for r in found])
    axes[0].set_ylim(len(found) - 0.4, -0.6)
    axes[0].set_xlim(0, 105 if not text else (largest * 1.08 or 1))
    fig.supxlabel("bits per byte (lower is better)" if text else "exact match, %", fontsize=9.5)
    return fig


def pictured(records: Sequence[Record], kind: str) -> list[tuple[str, Record, Any]]:
    """(encoding, record, picture): one for each encoding and task, of a seed that learned where there is one.

    A picture that is the beginning of another of the same encoding, or equal to it, is not shown again.
    """
    found: list[tuple[str, Record, Any]] = []
    for result in summary.results(records):
        for run in sorted(result.runs, key=lambda run: run.get("learned") is not True):
            picture = summary.get(run, "pictures", kind)
            if picture:
                found.append((result.label, run, picture))
                break
    kept: list[int] = []
    for place in sorted(range(len(found)), key=lambda place: -extent(found[place][2])):
        label, _, picture = found[place]
        if not any(found[other][0] == label and begins(picture, found[other][2]) for other in kept):
            kept.append(place)
    return [found[place] for place in sorted(kept)]


def extent(picture: Any) -> int:
    return len(picture) if isinstance(picture, list) else len(summary.get(picture, "distance") or [])


def begins(picture: Any, longer: Any) -> bool:
    """Whether a picture of fewer positions shows the same as the beginning of a longer one."""
    if isinstance(picture, dict) and isinstance(longer, dict):
        mine, theirs = picture.get("heads") or [], longer.get("heads") or []
        return len(mine) == len(theirs) and all(begins(a, b) for a, b in zip(mine, theirs, strict=True))
    if not (isinstance(picture, list) and isinstance(longer, list)):
        return bool(picture == longer)
    return longer[: len(picture)] == picture


def several_tasks(found: Sequence[tuple[str, Record, Any]]) -> Callable[[str, Record], str]:
    """Titles that name the task too where one encoding is shown for several."""
    names = [label for label, _, _ in found]
    return lambda label, run: (
        f"{short(label, 24)}, {summary.task_of(run)}" if names.count(label) > 1 else short(label, 28)
    )


@styled
def added(records: Sequence[Record]) -> Figure | None:
    """What each adding encoding adds to the embeddings, position by dimension."""
    found = [
        (label, run, table)
        for label, run, t in pictured(records, "added")
        if (table := numbers(t)).ndim == 2 and table.size
    ]
    if not found:
        return None
    words = several_tasks(found)
    fig, axes = panels(min(len(found), MOST_PANELS), 2, 4.5, 2.9, "What is added to the embeddings")
    for ax, (label, run, table) in zip(axes, found, strict=False):
        draw_table(ax, table, words(label, run))
        length = summary.trained_tokens(run)
        if length and length < len(table):
            ax.axhline(length - 0.5, color=INK, linestyle=(0, (4, 3)), linewidth=1)
            ax.annotate(
                "trained",
                (0.995, length - 0.5),
                xycoords=("axes fraction", "data"),
                xytext=(0, 2),
                textcoords="offset points",
                fontsize=7.5,
                ha="right",
                color="black",
            )
    return fig


def draw_table(ax: Axes, table: np.ndarray, title: str) -> None:
    limit = float(np.nanmax(np.abs(table))) if np.isfinite(table).any() else 1.0
    ax.imshow(table, cmap=DIVERGING, norm=Normalize(-(limit or 1.0), limit or 1.0), aspect="auto", interpolation="none")
    ax.set(title=title, xlabel="dimension", ylabel="position")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(visible=False)
    scale_bar(ax, -(limit or 1.0), limit or 1.0, DIVERGING)


def scale_bar(ax: Axes, low: float, high: float, colours: str, norm: Normalize | None = None, what: str = "") -> None:
    """A narrow scale beside the axes. One small image: a colorbar would put 256 shapes into the page."""
    box = ax.get_position().width * ax.figure.bbox.width / ax.figure.dpi
    bar = ax.inset_axes((1 + 0.08 / box, 0, 0.09 / box, 1))
    steps = np.linspace(low, high, 128)[:, None]
    bar.imshow(
        steps, cmap=colours, norm=norm, origin="lower", aspect="auto", extent=(0, 1, low, high), interpolation="none"
    )
    bar.yaxis.tick_right()
    bar.xaxis.set_major_locator(NullLocator())
    bar.yaxis.set_major_locator(MaxNLocator(4))
    bar.tick_params(labelsize=7, length=2)
    bar.grid(visible=False)
    if what:
        bar.set_title(what, fontsize=7.5, pad=4, loc="center")
    for spine in bar.spines.values():
        spine.set_visible(False)


@styled
def wavelengths(records: Sequence[Record]) -> Figure | None:
    """How many positions each pair needs for a full turn; above the dashed line it never completed one in training."""
    found = pictured(records, "wavelengths")
    if not found:
        return None
    fig = figure(9, 3.9, "Wavelength of each pair of channels")
    ax, appearance, words = fig.add_subplot(), looks(records), several_tasks(found)
    drawn = {label for label, _, _ in found}
    # Equal pictures of several tasks are drawn once, with the trained length of each task.
    lengths = summary.shown_positions([r for r in summary.results(records) if r.label in drawn])
    handles = []
    for label, run, values in found:
        own = appearance[label]
        draw_wavelengths(ax, numbers(values), max(lengths, default=None), own)
        entry = handle(label, own)
        entry.set_label(words(label, run))
        handles.append(entry)
    finish_wavelengths(ax, lengths)
    legend(fig, handles)
    return fig


def draw_wavelengths(ax: Axes, values: np.ndarray, trained: float | None, own: Look) -> None:
    pairs, group = np.arange(len(values)), f"encoding-{own.place}"
    turns = values <= trained if trained else np.full(len(values), True)
    ax.plot(pairs, values, color=own.color, linestyle=own.dashes, linewidth=1.1, gid=group)
    for chosen, face in ((turns, own.color), (~turns, PAPER)):
        ax.plot(
            pairs[chosen],
            values[chosen],
            linestyle="none",
            marker=own.marker,
            markersize=5.5,
            color=own.color,
            markerfacecolor=face,
            gid=group,
        )


def finish_wavelengths(ax: Axes, lengths: Iterable[float]) -> None:
    ax.set_yscale("log")
    plain_log(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    ax.set(
        xlabel="pair of channels (0 turns fastest; hollow: never completes a turn in training)",
        ylabel="positions per turn",
    )
    mark_trained(ax, lengths, horizontal=True)


@styled
def similarity(records: Sequence[Record]) -> Figure | None:
    """How alike positions look: cosine between what is added, and for rotary the mean cosine by distance."""
    tables = [
        (label, run, table)
        for label, run, t in pictured(records, "added")
        if (table := numbers(t)).ndim == 2 and table.size
    ]
    turned = [
        (label, run, values)
        for label, run, v in pictured(records, "rotation")
        if (values := numbers(v)).ndim == 1 and values.size
    ]
    if not tables and not turned:
        return None
    tables = tables[: MOST_PANELS - 1]
    fig, axes = panels(len(tables) + bool(turned), 3, 3.3, 3.1, "How alike two positions look")
    words = several_tasks(tables)
    for ax, (label, run, table) in zip(axes, tables, strict=False):
        draw_similarity(ax, cosines(table), words(label, run))
    if turned:
        ax, appearance, words = axes[-1], looks(records), several_tasks(turned)
        for label, run, values in turned:
            own = appearance[label]
            ax.plot(
                values,
                color=own.color,
                linestyle=own.dashes,
                linewidth=1.5,
                gid=f"encoding-{own.place}",
                label=words(label, run),
            )
        ax.axhline(0, color=SOFT, linewidth=0.8)
        ax.set(
            title="rotation, mean over pairs", xlabel="distance, positions", ylabel="mean cosine", ylim=(-1.05, 1.05)
        )
        if len(turned) < 6:
            ax.legend(loc="lower left", fontsize=7)
        mark_trained(ax, {length for _, run, _ in turned if (length := summary.trained_tokens(run))})
    return fig


def cosines(table: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(norm > 0, norm, np.nan)
    return unit @ unit.T


def draw_similarity(ax: Axes, matrix: np.ndarray, title: str) -> None:
    ax.imshow(matrix, cmap=DIVERGING, norm=Normalize(-1, 1), interpolation="none")
    ax.set(title=title, xlabel="position", ylabel="position")
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.grid(visible=False)
    scale_bar(ax, -1, 1, DIVERGING)


@styled
def bias(records: Sequence[Record]) -> Figure | None:
    """What is added to the logit at each distance, a line for each head."""
    found = [
        (label, run, b) for label, run, b in pictured(records, "bias") if numbers(summary.get(b, "heads")).ndim == 2
    ]
    if not found:
        return None
    words = several_tasks(found)
    fig, axes = panels(min(len(found), MOST_PANELS), 3, 3.1, 2.7, "Bias on the logit by distance")
    for place, (ax, (label, run, b)) in enumerate(zip(axes, found, strict=False)):
        length = summary.trained_tokens(run)
        draw_bias(ax, numbers(b.get("distance")), numbers(b["heads"]), words(label, run), legend_too=place == 0)
        mark_trained(ax, [length] if length else [])
    return fig


def draw_bias(ax: Axes, distances: np.ndarray, heads: np.ndarray, title: str, *, legend_too: bool) -> None:
    colours = matplotlib.colormaps["viridis"]
    for head, values in enumerate(heads):
        x = distances if len(distances) == len(values) else np.arange(len(values))
        ax.plot(x, values, color=colours(0.92 * head / max(1, len(heads) - 1)), linewidth=1.5, label=f"head {head}")
    ax.set(title=title, xlabel="distance, query - key", ylabel="bias, added to the logit")
    if legend_too and len(heads) <= 12:
        ax.legend(fontsize=7, ncols=2 if len(heads) > 4 else 1, loc="best", handlelength=1.4)


@styled
def attention(record: Record) -> Figure | None:
    """Where every head of one trained model looks, with its positions and with them taken away."""
    blocks = [
        (words, w)
        for kind, words in (("with", "with position"), ("without", "position removed"))
        if (w := weights_of(record, kind)) is not None
    ]
    if not blocks:
        return None
    title = f"{short(spec_of_all(record), 46)} on {summary.task_of(record)}: where each head looks"
    return draw_attention(blocks, summary.get(record, "attention", "tokens") or [], title)


def spec_of_all(record: Record) -> str:
    seed = summary.get(record, "experiment", "seed")
    return summary.spec_of(record) + (f" (seed {seed})" if seed else "")


def weights_of(record: Record, kind: str) -> np.ndarray | None:
    weights = numbers(summary.get(record, "attention", kind) or [])
    return weights if weights.ndim == 4 and weights.size else None


def draw_attention(blocks: list[tuple[str, np.ndarray]], tokens: Sequence[Any], title: str) -> Figure:
    """Small maps of layers by heads, all in one image for each block.

    One image, few words and places computed here: axes for each map, with their ticks, took twenty times as long.
    """
    layers, heads, T, S = blocks[0][1].shape
    shown_layers, shown_heads = min(layers, MOST_LAYERS), min(heads, MOST_HEADS)
    beside = shown_heads <= 4 and len(blocks) == 2
    rows, columns = (1, len(blocks)) if beside else (len(blocks), 1)
    few = len(tokens) == S == T and T <= 16
    labels = [readable(token) for token in tokens] if few else []
    long = max(map(len, labels), default=0)

    # All in inches: one map, what stands left of and under a block, and the titles above it.
    side = min(1.35 if few else 1.2, 9.0 / (shown_heads * columns))
    size = max(4.5, min(8.0, side * 72 / T * 0.85))
    left, under = 0.55 + long * size * 0.0085 * few, 0.3 + max(1, long) * size * 0.0095 * few
    above = 0.55 if any(words for words, _ in blocks) else 0.3
    wide, high = shown_heads * side, shown_layers * side
    width = max(5.2, columns * (wide + left) + 0.75)
    height = rows * (high + under + above) + 0.4
    fig = Figure(figsize=(width, height))
    fig.text(0.14 / width, 1 - 0.12 / height, title, va="top", fontsize=12, fontweight="bold")

    gap_rows, gap_columns = max(1, round(T * 0.06)), max(1, round(S * 0.06))
    step_rows, step_columns = T + gap_rows, S + gap_columns
    norm = PowerNorm(0.5, 0, 1)
    for place, (words, weights) in enumerate(blocks):
        row, column = divmod(place, columns)
        x, y = left + column * (wide + left), height - 0.4 - above - high - row * (high + under + above)
        ax = fig.add_axes((x / width, y / height, wide / width, high / height))
        weights = weights[:shown_layers, :shown_heads]
        future = np.triu(np.ones((T, S), dtype=bool), 1)
        if T == S and not np.nan_to_num(weights[..., future]).any():
            # What causality forbids is left out, so that a weight of zero can be told from it.
            weights = np.where(future, np.nan, weights)
        image = np.full((shown_layers * step_rows - gap_rows, shown_heads * step_columns - gap_columns), np.nan)
        for layer in range(shown_layers):
            for head in range(shown_heads):
                image[layer * step_rows :][:T, head * step_columns :][:, :S] = weights[layer, head]
        ax.imshow(image, cmap=SEQUENTIAL, norm=norm, aspect="auto", interpolation="none")
        ax.set_axis_off()
        note = f", first {shown_heads} of {heads} heads" if shown_heads < heads else ""
        note += f", first {shown_layers} of {layers} layers" if shown_layers < layers else ""
        ax.annotate(
            words + note, (0, 1), xycoords="axes fraction", xytext=(0, 20), textcoords="offset points", fontsize=10.5
        )
        for head in range(shown_heads):
            ax.annotate(
                f"head {head}",
                (head * step_columns + (S - 1) / 2, -0.5),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        for layer in range(shown_layers):
            # Far enough to the left to leave room for the tokens.
            away = -9 - long * size * 0.62 * few
            middle = layer * step_rows + (T - 1) / 2
            ax.annotate(
                f"layer {layer}",
                (-0.5, middle),
                xytext=(away, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                rotation=90,
                fontsize=8,
            )
            for i, label in enumerate(labels if column == 0 else []):
                ax.annotate(
                    label,
                    (-0.5, layer * step_rows + i),
                    xytext=(-3, 0),
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    fontsize=size,
                )
        # The tokens are the same under every head; they are written under the first.
        for j, label in enumerate(labels):
            turned = 90 if len(label) > 1 else 0
            ax.annotate(
                label,
                (j, len(image) - 0.5),
                xytext=(0, -3),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=size,
                rotation=turned,
            )
        ax.annotate(
            "key",
            (1, 0),
            xycoords="axes fraction",
            xytext=(0, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=SOFT,
        )
        if place == len(blocks) - 1:
            scale_bar(ax, 0, 1, SEQUENTIAL, norm, "weight")
    return fig


# Figures of plain arrays, for a look at one encoding and for the examples.


@styled
def heatmap(table: Any, title: str) -> Figure:
    """A table [positions, dimensions], red above zero and blue below."""
    fig = figure(8, 4.2)
    draw_table(fig.add_subplot(), two_axes(table, "table"), wrapped(title, 8))
    return fig


@styled
def wavelength_curve(wavelengths: Any, trained_length: float | None, title: str) -> Figure:
    """Positions per turn of each pair, fastest first; hollow where a turn is longer than the trained length."""
    fig = figure(8, 3.9)
    ax = fig.add_subplot(title=title)
    draw_wavelengths(ax, np.atleast_1d(numbers(wavelengths)), trained_length, look(0))
    finish_wavelengths(ax, [trained_length] if trained_length else [])
    return fig


@styled
def similarity_matrix(table: Any, title: str) -> Figure:
    """Cosine between the rows of a table [positions, dimensions]."""
    fig = figure(5.2, 4.4)
    draw_similarity(fig.add_subplot(), cosines(two_axes(table, "table")), wrapped(title, 5.2))
    return fig


@styled
def bias_curves(distances: Any, heads: Any, title: str) -> Figure:
    """What each head adds to a logit at each signed distance; `heads` is [heads, distances]."""
    fig, x = figure(7, 3.9), numbers(distances)
    ax = fig.add_subplot()
    draw_bias(ax, x, two_axes(heads, "heads"), wrapped(title, 7), legend_too=True)
    if len(x) and np.nanmin(x) < 0:
        ax.axvline(0, color=SOFT, linewidth=0.8)
        ax.set(xlabel="distance, query - key (left of 0: keys that come later)")
    return fig


@styled
def spectrum(waves: Any, before: Any, context: float, title: str, words: str, unit: str) -> Figure:
    """Positions per turn of each pair, and what they were before a schedule; hollow: no whole turn in the context.

    Pairs that never turn are left out; `words` say what is to be said of all.
    """
    fig = figure(8, 4.3)
    ax = fig.add_subplot(title=wrapped(title, 8))
    if before is not None:
        draw_wavelengths(ax, np.atleast_1d(numbers(before)), context, look(7))
    draw_wavelengths(ax, np.atleast_1d(numbers(waves)), context, look(0))
    ax.axhline(context, color=INK, linestyle=(0, (4, 3)), linewidth=1)
    ax.annotate(
        f"context: {context:g} {unit}",
        (0.005, context),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
    )
    ax.set_yscale("log")
    plain_log(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    ax.set_xlim(-0.03 * len(waves) - 0.2, 1.03 * len(waves) - 0.8)
    ax.set(xlabel=f"pair of channels (hollow: no whole turn)\n{words}", ylabel=f"{unit.split()[0]} per turn")
    if before is not None:
        legend(fig, [handle("before the schedule", look(7)), handle("after", look(0))])
    return fig


@styled
def curves(
    x: Any,
    lines: Mapping[str, Any],
    title: str,
    xlabel: str,
    ylabel: str,
    *,
    log: bool = False,
    mark: float | None = None,
) -> Figure:
    """Named lines over x; `mark` is the trained length, `log` is for x."""
    fig = figure(7, 3.9)
    ax, colours = fig.add_subplot(title=wrapped(title, 7)), matplotlib.colormaps["viridis"]
    for place, (name, values) in enumerate(lines.items()):
        few = len(lines) <= 2
        ax.plot(
            numbers(x),
            numbers(values),
            color=LIGHT[place] if few else colours(0.92 * place / (len(lines) - 1)),
            linestyle=DASHES[place] if few else "-",
            linewidth=1.5,
            label=name,
        )
    if log:
        ax.set_xscale("log")
        plain_log(ax.xaxis)
    if mark is not None:
        mark_trained(ax, [mark])
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if 1 < len(lines) <= 12:
        ax.legend(fontsize=7, ncols=2 if len(lines) > 4 else 1, loc="best", handlelength=1.6)
    return fig


@styled
def centre_maps(maps: Any, title: str) -> Figure:
    """How each head sees a grid from its middle cell, which is marked; `maps` is [heads, rows, columns]."""
    array = numbers(maps)
    if array.ndim != 3 or not array.size:
        raise ValueError(f"maps must be [heads, rows, columns] with at least one cell, got shape {array.shape}")
    shown = array[:MOST_PANELS]
    limit = float(np.nanmax(np.abs(shown))) if np.isfinite(shown).any() else 1.0
    fig, axes = panels(len(shown), 4, 2.3 if len(shown) > 1 else 4.2, 2.3 if len(shown) > 1 else 3.9, "")
    fig.suptitle(
        "\n".join(textwrap.wrap(title, max(48, int(fig.get_figwidth() * 10)))), x=0.01, ha="left", fontsize=10.5
    )
    for head, (ax, cells) in enumerate(zip(axes, shown, strict=True)):
        ax.imshow(cells, cmap=DIVERGING, norm=Normalize(-(limit or 1.0), limit or 1.0), interpolation="none")
        ax.plot([cells.shape[1] // 2], [cells.shape[0] // 2], marker="+", color=INK, markersize=7)
        ax.set(title=f"head {head}" if len(array) > 1 else "", xlabel="column", ylabel="row")
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        ax.grid(visible=False)
    scale_bar(axes[-1], -(limit or 1.0), limit or 1.0, DIVERGING)
    return fig


@styled
def clock(frequencies: Any, position: float, title: str) -> Figure:
    """The pairs of one position as clock hands: pair m stands at position * frequency_m radians.

    With angles in place of frequencies, give position 1. The faint arc is the way the hand has come, up to one turn.
    """
    angles = np.atleast_1d(numbers(frequencies)) * position
    shown = angles[:64]
    columns = min(8, len(shown))
    rows = -(-len(shown) // columns)
    fig = figure(columns * 1.05 + 0.2, rows * 1.25 + 0.5, title)
    ax = fig.add_subplot()
    turn = np.linspace(0, 2 * np.pi, 60)
    for m, angle in enumerate(shown):
        x, y = (m % columns) * 2.6, -(m // columns) * 3.1
        ax.plot(x + np.cos(turn), y + np.sin(turn), color=SOFT, linewidth=0.8)
        if np.isfinite(angle):
            way = np.linspace(0, np.clip(angle, -2 * np.pi, 2 * np.pi), 60)
            ax.plot(x + 0.8 * np.cos(way), y + 0.8 * np.sin(way), color=LIGHT[0], linewidth=2.5, alpha=0.35)
            ax.plot([x, x + np.cos(angle)], [y, y + np.sin(angle)], color=LIGHT[1], linewidth=2)
            ax.plot([x], [y], marker="o", markersize=3, color=LIGHT[1])
        turns = abs(angle) / (2 * np.pi)
        words = f"{turns:.2g}" if turns < 10 else f"{turns:.0f}"
        ax.text(x, y - 1.5, f"pair {m}: {words}", ha="center", va="center", fontsize=7)
    ax.set(aspect="equal", xlim=(-1.3, (columns - 1) * 2.6 + 1.3), ylim=(-(rows - 1) * 3.1 - 1.9, 1.2))
    ax.axis("off")
    rest = f"; the first {len(shown)} of {len(angles)} pairs" if len(shown) < len(angles) else ""
    fig.supxlabel(f"position {position:g}, turns made by each pair{rest}", fontsize=9)
    return fig


@styled
def fingerprint(table: Any, positions: Sequence[int], title: str) -> Figure:
    """How positions differ: the rows of the chosen positions, one under the other."""
    table = two_axes(table, "table")
    outside = [p for p in positions if not -len(table) <= p < len(table)]
    if outside or not len(positions):
        raise ValueError(f"positions must name rows of the table, 0 to {len(table) - 1}; got {list(positions)}")
    fig = figure(8, 0.75 * len(positions) + 1.0, title)
    axes = fig.subplots(len(positions), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    rows = table[list(positions)]
    limit = float(np.nanmax(np.abs(rows))) if np.isfinite(rows).any() else 1.0
    colours = matplotlib.colormaps[DIVERGING]
    for ax, position, row in zip(axes, positions, rows, strict=True):
        ax.bar(np.arange(len(row)), row, width=0.9, color=colours(0.5 + 0.45 * np.nan_to_num(row) / (limit or 1.0)))
        ax.axhline(0, color=SOFT, linewidth=0.7)
        ax.set_ylabel(f"position\n{position}", rotation=0, ha="right", va="center", fontsize=8)
        ax.grid(visible=False)
        ax.yaxis.set_major_locator(MaxNLocator(3))
    axes[-1].set_xlabel("dimension")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return fig


@styled
def attention_maps(weights: Any, tokens: Sequence[Any] | None, title: str) -> Figure:
    """Attention weights [layers, heads, queries, keys], or [heads, queries, keys], or one map."""
    array = numbers(weights)
    if array.ndim not in (2, 3, 4):
        raise ValueError(
            f"weights must be [layers, heads, queries, keys], or have fewer axes in front; got shape {array.shape}"
        )
    return draw_attention([("", array.reshape((1,) * (4 - array.ndim) + array.shape))], tokens or [], title)


@styled
def attention_beside(maps: Mapping[str, Any], title: str) -> Figure:
    """Attention weights [heads, queries, keys] of one layer in several settings, each with its words."""
    return draw_attention([(words, numbers(weights)[None]) for words, weights in maps.items()], [], title)


@styled
def shift_matrix(matrix: Any, title: str) -> Figure:
    """A matrix M, as in PE(p + k) = M PE(p), with its numbers where they are few."""
    array = two_axes(matrix, "matrix")
    fig = figure(5.2, 4.6)
    ax = fig.add_subplot()
    draw_table(ax, array, title)
    ax.set(xlabel="from dimension", ylabel="to dimension", aspect="equal")
    if max(array.shape) <= 10:
        limit = float(np.nanmax(np.abs(array))) or 1.0
        for (i, j), value in np.ndenumerate(array):
            dark = abs(value) > 0.6 * limit
            # A tiny negative number would be printed as -0.00.
            ax.text(
                j,
                i,
                f"{round(value, 2) + 0.0:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="#f6f8fa" if dark else "#24292f",
            )
    return fig


def two_axes(values: Any, what: str) -> np.ndarray:
    array = numbers(values)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"{what} must have two axes and at least one entry, got shape {array.shape}")
    return array


@contextlib.contextmanager
def letters_may_lack() -> Generator[None]:
    """A third party's spec may hold letters that the font lacks; an empty box is no reason to fail."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def settle(fig: Figure) -> None:
    """Lay the figure out once; every rendering keeps the places, where it would otherwise lay out again."""
    engine = fig.get_layout_engine()
    if engine is not None:
        FigureCanvasAgg(fig)
        engine.execute(fig)
        fig.set_layout_engine(None)


@styled
def png(fig: Figure) -> bytes:
    """The figure as a PNG file that can be read alone, on white."""
    out = io.BytesIO()
    with letters_may_lack():
        settle(fig)
        FigureCanvasAgg(fig).print_png(out, pil_kwargs={"compress_level": 4})
    return out.getvalue()


@styled
def svg(fig: Figure) -> str:
    """The figure as an SVG document on no background, with its words as text: escaped, and no control characters."""
    out = io.StringIO()
    kept = fig.get_facecolor()
    fig.set_facecolor("none")
    with letters_may_lack():
        settle(fig)
        FigureCanvasSVG(fig).print_svg(out, metadata={"Date": None, "Creator": None})
    fig.set_facecolor(kept)
    # matplotlib escapes markup alone, and a document with control characters is no XML.
    return visible(out.getvalue())


def save(fig: Figure, path: Path | str) -> Path:
    """Write the figure, whole or not at all; the ending of the name, .png or .svg, chooses the format.

    Raises ValueError for another ending.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in (".png", ".svg"):
        raise ValueError(f"a figure is saved as .png or .svg, got '{path.name}'")
    store.write(path, png(fig) if ending == ".png" else svg(fig).encode())
    return path
