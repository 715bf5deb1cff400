"""Draw figures of plain arrays: of one encoding, and for the examples."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posenc.lab.results import summary
from posenc.lab.results.figures import layout
from posenc.lab.results.figures.style import DIVERGING, END_LINE, Look, ink, look, paper, shade, soft, styled, thin


def as_table(values: Any, name: str) -> np.ndarray:
    array = summary.float_array(values)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"{name} must have two axes and at least one entry, got shape {array.shape}")
    return array


def as_row(values: Any, name: str, hint: str = "") -> np.ndarray:
    array = np.atleast_1d(summary.float_array(values))
    if array.ndim != 1 or not array.size:
        problem = f"got {type(values).__name__}" + (f" of shape {array.shape}" if array.size else "")
        raise ValueError(f"{name} must be at least one number, in a row; {problem}{hint}")
    return array


def diverging_style(values: np.ndarray) -> dict[str, Any]:
    """Return the options of an image: red above zero, blue below, with the same scale on both sides."""
    limit = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    return {"cmap": DIVERGING, "norm": Normalize(-(limit or 1.0), limit or 1.0), "interpolation": "none"}


def draw_table(ax: Axes, table: np.ndarray, title: str) -> None:
    image = ax.imshow(table, **diverging_style(table), aspect="auto")
    ax.set(title=title, xlabel="channel", ylabel="position")
    layout.integer_ticks(ax, 6)
    layout.color_bar(image, ax)


def write_cells(ax: Axes, cells: np.ndarray, form: str, is_dark: Callable[[float], bool]) -> None:
    """Write the number of each cell [rows, columns] of an image, in black or white."""
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            # Otherwise a tiny negative number would be -0.00.
            words = form.format(round(float(value), 2) + 0.0)
            color = "white" if is_dark(value) else "black"
            ax.text(column, row, words, ha="center", va="center", fontsize="x-small", color=color)


def draw_wavelengths(ax: Axes, values: np.ndarray, trained_length: float | None, style: Look, label: str = "") -> None:
    pairs, line_style = np.arange(len(values)), dict[str, Any](color=style.color, gid=style.gid)
    turns = values <= trained_length if trained_length else np.full(len(values), True)
    ax.plot(pairs, values, linestyle=style.dashes, linewidth=0.7 * thin(), label=label or None, **line_style)
    size = 0.85 * matplotlib.rcParams["lines.markersize"]
    line_style |= {"linestyle": "none", "marker": style.marker, "markersize": size}
    for part, face in ((turns, style.color), (~turns, paper())):
        ax.plot(pairs[part], values[part], markerfacecolor=face, **line_style)


def finish_wavelengths(ax: Axes, lengths: Iterable[float]) -> None:
    ax.set_yscale("log")
    layout.plain_log(ax.yaxis)
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    hollow = "0 turns fastest; hollow: never completes a turn in training"
    ax.set(xlabel=f"pair of channels ({hollow})", ylabel="positions per turn")
    layout.mark_trained(ax, lengths, horizontal=True)


def cosines(table: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(norm > 0, norm, np.nan)
    return unit @ unit.T


def draw_similarity(ax: Axes, matrix: np.ndarray, title: str) -> None:
    image = ax.imshow(matrix, cmap=DIVERGING, norm=Normalize(-1, 1), interpolation="none")
    ax.set(title=title, xlabel="position", ylabel="position")
    layout.integer_ticks(ax, 5)
    layout.color_bar(image, ax, shrink=0.75)


def draw_bias(ax: Axes, distances: np.ndarray, heads: np.ndarray, title: str) -> None:
    for head, values in enumerate(heads):
        x = distances if len(distances) == len(values) else np.arange(len(values))
        ax.plot(x, values, **shade(head, len(heads)), linewidth=thin(), label=f"head {head}")
    ax.set(title=title, xlabel="distance, query - key", ylabel="bias, added to the logit")
    layout.legend_beside(ax)


@styled
def heatmap(table: Any, title: str) -> Figure:
    """Draw a table [positions, channels], red above zero and blue below."""
    fig = layout.figure(8, 4.2)
    draw_table(fig.add_subplot(), as_table(table, "table"), layout.wrap_title(title, 8))
    return fig


@styled
def similarity_matrix(table: Any, title: str) -> Figure:
    """Draw the cosine between the rows of a table [positions, channels]."""
    fig = layout.figure(5.2, 4.4)
    draw_similarity(fig.add_subplot(), cosines(as_table(table, "table")), layout.wrap_title(title, 5.2))
    return fig


@styled
def bias_curves(distances: Any, heads: Any, title: str) -> Figure:
    """Draw what each head adds to a logit at each signed distance; `heads` is [heads, distances]."""
    fig, x = layout.figure(7, 3.9), summary.float_array(distances)
    ax = fig.add_subplot()
    draw_bias(ax, x, as_table(heads, "heads"), layout.wrap_title(title, 7))
    if len(x) and np.nanmin(x) < 0:
        ax.axvline(0, color=soft(), linewidth=0.8)
        ax.set(xlabel="distance, query - key (left of 0: keys that come later)")
    return fig


@styled
def spectrum(waves: Any, original: Any, context: float, title: str, words: str, unit: str) -> Figure:
    """Draw the positions per turn of each pair, also before a schedule.

    Pairs without a whole turn in the context are hollow; pairs that never turn are absent. `words` is below the axis.
    """
    fig = layout.figure(8, 4.3)
    ax = fig.add_subplot(title=layout.wrap_title(title, 8))
    if original is not None:
        draw_wavelengths(ax, as_row(original, "wavelengths"), context, look(7))
    draw_wavelengths(ax, as_row(waves, "wavelengths"), context, look(0))
    ax.axhline(context, color=ink(), linestyle=END_LINE, linewidth=1)
    note = f"context: {layout.format_number(context)} {unit}"
    layout.note(ax, note, (0.005, context), ("axes fraction", "data"), (0, 3))
    finish_wavelengths(ax, [])
    ax.set(xlabel=f"pair of channels (hollow: no whole turn)\n{words}", ylabel=f"{unit.split()[0]} per turn")
    ax.set_xlim(-0.03 * len(waves) - 0.2, 1.03 * len(waves) - 0.8)
    if original is not None:
        labels = {"before the schedule": 7, "after": 0}
        layout.legend(fig, [layout.legend_handle(label, look(place)) for label, place in labels.items()])
    return fig


@styled
def staircase(x: Any, rows: Any, title: str, xlabel: str, ylabel: str) -> Figure:
    """Draw which row of a table each position or distance reads, and where the last row begins."""
    places, steps = as_row(x, "x"), as_row(rows, "rows")
    fig = layout.figure(7, 3.9)
    ax = fig.add_subplot(title=layout.wrap_title(title, 7))
    ax.step(places, steps, where="mid", color=look(0).color, linewidth=thin())
    last = places[np.flatnonzero(steps != steps[-1])[-1] + 1] if (steps != steps[-1]).any() else places[0]
    if last < places[-1]:
        ax.axvline(last, color=ink(), linestyle=END_LINE, linewidth=1)
        va, up = ("top", -4) if steps[-1] >= steps[0] else ("bottom", 4)
        layout.note(ax, f"from {layout.format_number(last)} on: one row", (last, steps[-1]), "data", (4, up), va=va)
    ax.set(xlabel=xlabel, ylabel=ylabel)
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
    """Draw named lines over x; `mark` is the trained length, `log` is for x."""
    fig = layout.figure(7, 3.9)
    ax = fig.add_subplot(title=layout.wrap_title(title, 7))
    for place, (name, values) in enumerate(lines.items()):
        style = look(place)
        line_style = {"color": style.color, "linestyle": style.dashes} if len(lines) <= 2 else shade(place, len(lines))
        ax.plot(summary.float_array(x), summary.float_array(values), **line_style, linewidth=thin(), label=name)
    if log:
        ax.set_xscale("log")
        layout.plain_log(ax.xaxis)
    if mark is not None:
        layout.mark_trained(ax, [mark])
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if len(lines) > 1:
        layout.legend_beside(ax)
    return fig


@styled
def centre_maps(maps: Any, title: str) -> Figure:
    """Draw the attention of each head from the marked middle cell of a grid. `maps` is [heads, rows, columns]."""
    array = summary.float_array(maps)
    if array.ndim != 3 or not array.size:
        raise ValueError(f"maps must be [heads, rows, columns] with at least one cell, got shape {array.shape}")
    heads = array[: layout.MAX_PANELS]
    colours, side = diverging_style(heads), 2.3 if len(heads) > 1 else 4.2
    sheet = layout.panel_grid(len(heads), 4, (side, side), title)
    for head, (ax, cells) in enumerate(zip(sheet.axes, heads, strict=True)):
        image = ax.imshow(cells, **colours)
        ax.plot([cells.shape[1] // 2], [cells.shape[0] // 2], marker="+", color=ink(), markersize=7)
        ax.set(title=f"head {head}" if len(array) > 1 else "", xlabel="column", ylabel="row")
        layout.integer_ticks(ax, 4)
    layout.color_bar(image, sheet.axes, shrink=0.6)
    return sheet.figure


@styled
def clock(frequencies: Any, position: float, title: str) -> Figure:
    """Draw the pairs of one position as clock hands: pair m is at position * frequency_m radians.

    For angles, pass position 1. The faint arc is the angle, up to one turn.
    """
    owner = "; an encoding has them as .frequencies" if hasattr(frequencies, "frequencies") else ""
    angles = as_row(frequencies, "frequencies", owner) * position
    hands = angles[:64]
    columns = min(8, len(hands))
    rows = -(-len(hands) // columns)
    fig = layout.figure(columns * 1.05 + 0.2, rows * 1.25 + 0.5, title)
    ax = fig.add_subplot()
    turn = np.linspace(0, 2 * np.pi, 60)
    for m, angle in enumerate(hands):
        x, y = (m % columns) * 2.6, -(m // columns) * 3.1
        ax.plot(x + np.cos(turn), y + np.sin(turn), color=soft(), linewidth=0.8)
        if np.isfinite(angle):
            way = np.linspace(0, np.clip(angle, -2 * np.pi, 2 * np.pi), 60)
            ax.plot(x + 0.8 * np.cos(way), y + 0.8 * np.sin(way), color=look(0).color, linewidth=2.5, alpha=0.35)
            ax.plot([x, x + np.cos(angle)], [y, y + np.sin(angle)], color=look(1).color, linewidth=2)
            ax.plot([x], [y], marker="o", markersize=3, color=look(1).color)
        turns = abs(angle) / (2 * np.pi)
        words = f"{turns:.2g}" if turns < 10 else f"{turns:.0f}"
        ax.text(x, y - 1.5, f"pair {m}: {words}", ha="center", va="center", fontsize="x-small")
    ax.set(aspect="equal", xlim=(-1.3, (columns - 1) * 2.6 + 1.3), ylim=(-(rows - 1) * 3.1 - 1.9, 1.2))
    ax.axis("off")
    rest = f"; the first {len(hands)} of {len(angles)} pairs" if len(hands) < len(angles) else ""
    fig.supxlabel(f"position {layout.format_number(position)}, turns made by each pair{rest}", fontsize="small")
    return fig


@styled
def fingerprint(table: Any, positions: Sequence[int], title: str) -> Figure:
    """Draw the rows of some positions, one below the other."""
    table = as_table(table, "table")
    invalid = [p for p in positions if not -len(table) <= p < len(table)]
    if invalid or not len(positions):
        raise ValueError(f"positions must name rows of the table, 0 to {len(table) - 1}; got {list(positions)}")
    fig = layout.figure(8, 0.75 * len(positions) + 1.0, title)
    axes = fig.subplots(len(positions), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    rows = table[list(positions)]
    colours, norm = matplotlib.colormaps[DIVERGING], diverging_style(rows)["norm"]
    for ax, position, row in zip(axes, positions, rows, strict=True):
        ax.bar(np.arange(len(row)), row, width=0.9, color=colours(norm(np.nan_to_num(row))))
        ax.axhline(0, color=soft(), linewidth=0.7)
        ax.set_ylabel(f"position\n{position}", rotation=0, ha="right", va="center", fontsize="small")
        ax.grid(visible=False)
        ax.yaxis.set_major_locator(MaxNLocator(3))
    axes[-1].set_xlabel("channel")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return fig


@styled
def shift_matrix(matrix: Any, title: str) -> Figure:
    """Draw a matrix M of PE(p + k) = M PE(p), with its numbers if they are few."""
    array = as_table(matrix, "matrix")
    fig = layout.figure(5.2, 4.6)
    ax = fig.add_subplot()
    draw_table(ax, array, title)
    ax.set(xlabel="from channel", ylabel="to channel", aspect="equal")
    if max(array.shape) <= 10:
        limit = float(np.nanmax(np.abs(array)))
        write_cells(ax, array, "{:.2f}", lambda value: abs(value) > 0.6 * limit)
    return fig
