"""Figures of attention weights: where each head looks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from posenc.lab.results import summary
from posenc.lab.results.figures.layout import (
    LETTER,
    check_size,
    folded,
    letters,
    note,
    numbers,
    readable,
    scale_bar,
    short,
)
from posenc.lab.results.figures.style import SEQUENTIAL, points, soft, styled
from posenc.lab.results.summary import Record

MOST_HEADS, MOST_LAYERS = 8, 6
WIDEST = 11.6
"""Inches of a figure that is given no width."""
LEAST_LETTERS = 4.5
"""Points; smaller letters than these beside a map are not read, so where they do not fit, some are left out."""


@styled
def attention(
    record: Record, *, width: float | None = None, height: float | None = None, title: str | None = None
) -> Figure | None:
    """Where every head of one trained model looks, with its positions and with them taken away.

    record         one of posenc.lab.load(folder, what="records")
    width, height  inches
    title          its own words, or "" for none

    None where the record holds no attention.
    """
    blocks = [
        (words, w)
        for kind, words in (("with", "with position"), ("without", "position removed"))
        if (w := weights_of(record, kind)) is not None
    ]
    if not blocks:
        return None
    if title is None:
        title = f"{short(spec_of_all(record), 46)} on {summary.task_of(record)}: where each head looks"
    return draw_attention(blocks, summary.get(record, "attention", "tokens") or [], title, width, height)


def spec_of_all(record: Record) -> str:
    seed = summary.get(record, "experiment", "seed")
    return summary.spec_of(record) + (f" (seed {seed})" if seed else "")


def weights_of(record: Record, kind: str) -> np.ndarray | None:
    weights = numbers(summary.get(record, "attention", kind) or [])
    return weights if weights.ndim == 4 and weights.size else None


def draw_attention(
    blocks: list[tuple[str, np.ndarray]],
    tokens: Sequence[Any],
    title: str,
    asked_width: float | None = None,
    asked_height: float | None = None,
) -> Figure:
    """Small maps of layers by heads, all in one image for each block.

    One image, few words and places computed here: axes for each map, with their ticks, took twenty times as long.
    """
    layers, heads, T, S = blocks[0][1].shape
    shown_layers, shown_heads = min(layers, MOST_LAYERS), min(heads, MOST_HEADS)
    # All in inches, as letters are large: what stands left of a block, under it and above it; and one map.
    unit = points("small") / 8
    least, labelled = LEAST_LETTERS * unit, len(tokens) == S == T
    side = 1.35 if T <= 16 else 1.2
    if labelled:
        side = max(side, min(2.6, T * least / 72 / 0.85))
    fits = asked_width is not None or 2 * (shown_heads * side + unit) < WIDEST
    beside = shown_heads <= 4 and len(blocks) == 2 and fits
    rows, columns = (1, len(blocks)) if beside else (len(blocks), 1)
    left, under, above = 0.55 * unit, 0.3 * unit, (0.55 if any(words for words, _ in blocks) else 0.3) * unit
    room = ((asked_width or WIDEST) - 0.75 * unit) / columns - left
    side = min(side, room / shown_heads)
    size = min(8.0 * unit, side * 72 / T * 0.85)
    every = math.ceil(round(least / size, 6))
    size = max(size, least)
    labels = {i: readable(token) for i, token in enumerate(tokens) if i % every == 0} if labelled else {}
    long = max(map(len, labels.values()), default=0)
    left, under = left + long * size * 0.0085, under + long * size * 0.0095
    side = min(side, (room - long * size * 0.0085) / shown_heads)
    wide, high = shown_heads * side, shown_layers * side
    width = asked_width or max(5.2, columns * (wide + left) + 0.75 * unit)
    heading = folded(title, width)
    top = (0.15 + 0.22 * (heading.count("\n") + bool(heading))) * unit
    height = asked_height or rows * (high + under + above) + top
    high = (height - top) / rows - under - above
    check_size(width=width, height=height)
    if min(high / shown_layers, side) < 0.1:
        raise ValueError(
            f"{width:g} by {height:g} inches are too few for {len(blocks)} blocks of {shown_layers} layers by "
            f"{shown_heads} heads: no room is left for their maps; give more"
        )
    fig = Figure(figsize=(width, height))
    fig.text(
        0.1 / width, 1 - 0.1 / height, heading, va="top", fontsize=matplotlib.rcParams["figure.titlesize"],
        fontweight=matplotlib.rcParams["figure.titleweight"],
    )  # fmt: skip

    tight = len("head 0 ") * LETTER * points("small") / 72 > side
    gap_rows, gap_columns = max(1, round(T * 0.06)), max(1, round(S * 0.06))
    step_rows, step_columns = T + gap_rows, S + gap_columns
    norm = PowerNorm(0.5, 0, 1)
    for place, (words, weights) in enumerate(blocks):
        row, column = divmod(place, columns)
        x, y = left + column * (wide + left), height - top - above - high - row * (high + under + above)
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
        rest = f", first {shown_heads} of {heads} heads" if shown_heads < heads else ""
        rest += f", first {shown_layers} of {layers} layers" if shown_layers < layers else ""
        note(ax, words + rest, (0, 1), "axes fraction", (0, 20 * unit), fontsize="medium")
        for head in range(shown_heads):
            middle = head * step_columns + (S - 1) / 2
            words_of_head = str(head) if head and tight else f"head {head}"
            note(ax, words_of_head, (middle, -0.5), "data", (0, 4 * unit), ha="center")
        for layer in range(shown_layers):
            # Far enough to the left to leave room for the tokens.
            aside = -9 - long * size * 0.62
            middle = layer * step_rows + (T - 1) / 2
            note(
                ax,
                f"layer {layer}",
                (-0.5, middle),
                "data",
                (aside, 0),
                ha="right",
                va="center",
                rotation=90,
            )
            for i, label in labels.items() if column == 0 else ():
                spot = (-0.5, layer * step_rows + i)
                note(ax, label, spot, "data", (-3, 0), ha="right", va="center", fontsize=size)
        for j, label in [
            (head * step_columns + j, label) for head in range(shown_heads) for j, label in labels.items()
        ]:
            turned, spot = 90 if len(label) > 1 else 0, (j, len(image) - 0.5)
            note(ax, label, spot, "data", (0, -3), ha="center", top=True, fontsize=size, rotation=turned)
        below = (0, -6 - long * size * 0.7)
        sides = "down: queries; across: keys"
        some = f"{sides}; one token in {every} is named" if labels and every > 1 else sides
        axes_words = next((w for w in (some, sides) if len(w) <= letters(wide, "small")), "keys across")
        note(ax, axes_words, (1, 0), "axes fraction", below, ha="right", top=True, color=soft())
        if place == len(blocks) - 1:
            scale_bar(ax, 0, 1, SEQUENTIAL, norm, "weight")
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
