"""Draw attention weights as maps of heads and layers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from posenc.lab.appearance import short
from posenc.lab.results import summary
from posenc.lab.results.figures.layout import color_bar, figure, token_label
from posenc.lab.results.figures.style import SEQUENTIAL, ink, points, styled
from posenc.lab.results.summary import Record

MAX_HEADS, MAX_LAYERS = 8, 6
MAX_WIDTH = 11.6
"""The default of the largest width in inches."""
LINE_HEIGHT = 1 / 72 / 0.85
"""The height of a line in inches, for each point of the font size."""
MIN_LETTER_SIZE = 4.5
"""The smallest font size in points; if the token labels do not fit in it, only every n-th is written."""


@styled
def attention(
    record: Record, *, width: float | None = None, height: float | None = None, title: str | None = None
) -> Figure | None:
    """Draw the attention of each head of a trained model, with its positions and without.

    record         one of posenc.lab.load(folder, what="records")
    width, height  inches
    title          another title, or "" for none

    None if the record has no attention.
    """
    kinds = {"with position": "with", "position removed": "without"}
    maps = {words: summary.float_array(summary.get(record, "attention", kind) or []) for words, kind in kinds.items()}
    blocks = [(words, weights) for words, weights in maps.items() if weights.ndim == 4 and weights.size]
    if not blocks:
        return None
    if title is None:
        seed = summary.get(record, "experiment", "seed")
        name = short(summary.spec_of(record) + (f" (seed {seed})" if seed else ""), 46)
        title = f"{name} on {summary.task_of(record)}: where each head looks"
    return draw_attention(blocks, summary.get(record, "attention", "tokens") or [], title, width, height)


def draw_attention(
    blocks: list[tuple[str, np.ndarray]],
    tokens: Sequence[Any],
    title: str,
    width: float | None = None,
    height: float | None = None,
) -> Figure:
    """Draw blocks of small maps, layers by heads."""
    all_layers, all_heads, T, S = blocks[0][1].shape
    layers, heads = min(all_layers, MAX_LAYERS), min(all_heads, MAX_HEADS)
    labels = [token_label(token) for token in tokens] if len(tokens) == T == S else []
    side = max(1.35 if T <= 16 else 1.2, min(2.6, len(labels) * MIN_LETTER_SIZE * LINE_HEIGHT))
    columns = 2 if len(blocks) == 2 and (width or 2 * (heads * side + 1)) <= MAX_WIDTH and heads <= 4 else 1
    side = min(side, ((width or MAX_WIDTH) - 0.8) / columns / heads - 0.1)
    width = width or max(5.2, columns * (heads * side + 0.8) + 0.8)
    fig = figure(width, height or len(blocks) / columns * (layers * side + 0.9) + 0.4, title)
    axes = list(fig.subplots(len(blocks) // columns, columns, squeeze=False).flat)
    images = []
    for ax, (words, weights) in zip(axes, blocks, strict=True):
        notes = [f"first {heads} of {all_heads} heads"] * (heads < all_heads)
        notes += [f"first {layers} of {all_layers} layers"] * (layers < all_layers)
        ax.set_title(", ".join(filter(None, [words, *notes])))
        images.append(draw_block(ax, weights[:layers, :heads], labels, side))
    color_bar(images[-1], axes, label="weight", aspect=30, shrink=0.6, ticks=[0, 0.25, 0.5, 0.75, 1])
    return fig


def draw_block(ax: Axes, weights: np.ndarray, tokens: Sequence[str], side: float) -> AxesImage:
    """Draw the maps [layers, heads, queries, keys] as one image. Axes for each map took twenty times as long.

    tokens  the labels of queries and keys
    side    of one map, inches
    """
    layers, heads, T, S = weights.shape
    future = np.triu(np.ones((T, S), dtype=bool), 1)
    if T == S and not np.nan_to_num(weights[..., future]).any():
        # Masked weights are left out, so that they differ from weights of zero.
        weights = np.where(future, np.nan, weights)
    pitch_y, pitch_x = T + max(1, round(T * 0.06)), S + max(1, round(S * 0.06))
    image = np.full((layers * pitch_y - (pitch_y - T), heads * pitch_x - (pitch_x - S)), np.nan)
    for layer, head in np.ndindex(layers, heads):
        image[layer * pitch_y :][:T, head * pitch_x :][:, :S] = weights[layer, head]
    drawn_image = ax.imshow(image, cmap=SEQUENTIAL, norm=PowerNorm(0.5, 0, 1), aspect="auto", interpolation="none")
    size = min(points("small"), side / LINE_HEIGHT / max(1, len(tokens)))
    stride = math.ceil(round(MIN_LETTER_SIZE / size, 6))
    places, size = range(0, len(tokens), stride), max(size, MIN_LETTER_SIZE)
    words = [tokens[i] for i in places]
    room_below = write_labels(ax, "x", words, [head * pitch_x + i for head in range(heads) for i in places], size)
    room_beside = write_labels(ax, "y", words, [layer * pitch_y + i for layer in range(layers) for i in places], size)
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel(f"keys, one token in {stride}" if stride > 1 else "keys", labelpad=room_below)
    ax.set_ylabel("queries", labelpad=room_beside)
    top, right = ax.secondary_xaxis("top"), ax.secondary_yaxis("right")
    top.set_xticks([head * pitch_x + (S - 1) / 2 for head in range(heads)], [str(head) for head in range(heads)])
    right.set_yticks([layer * pitch_y + (T - 1) / 2 for layer in range(layers)], [*map(str, range(layers))])
    top.set_xlabel("head", fontsize="small")
    right.set_ylabel("layer", fontsize="small")
    for axis in (ax, top, right):
        axis.grid(visible=False)
        axis.tick_params(which="both", bottom=False, left=False, top=False, right=False)
        axis.spines[:].set_visible(False)
    return drawn_image


def write_labels(ax: Axes, axis: str, words: Sequence[str], places: Sequence[int], size: float) -> float:
    """Write the words beside an axis, for each map, and return the points that they need.

    They are one collection of shapes, because ticks, an artist for each word, took most of a report's time.
    """
    shapes, room, gap = [], 0.0, 3.0
    for word in words:
        shape = TextPath((0, 0), word, size=size)
        box, transform = shape.get_extents(), Affine2D()
        if axis == "y":
            transform.translate(-box.x1 - gap, -0.36 * size)
        elif len(word) > 1:
            transform.rotate_deg(90).translate(0.36 * size, -box.x1 - gap)
        else:
            transform.translate(-(box.x0 + box.x1) / 2, -0.73 * size - gap)
        shapes.append(transform.transform_path(shape))
        room = max(room, size if axis == "x" and len(word) == 1 else box.x1)
    if shapes:
        offsets = [(place, 0) if axis == "x" else (0, place) for place in places]
        of_axis = ax.get_xaxis_transform() if axis == "x" else ax.get_yaxis_transform()
        letters = PathCollection(
            shapes, offsets=offsets, offset_transform=of_axis, color=ink(), linewidths=0, snap=False
        )
        letters.set_transform(Affine2D().scale(1 / 72) + ax.figure.dpi_scale_trans)
        ax.add_collection(letters, autolim=False).set_clip_on(False)
    return room + 2 * gap


@styled
def attention_maps(weights: Any, tokens: Sequence[Any] | None, title: str) -> Figure:
    """Draw attention weights [layers, heads, queries, keys], or a dict of them. Leading axes may be absent."""
    blocks = []
    for words, maps in (weights if isinstance(weights, Mapping) else {"": weights}).items():
        array = summary.float_array(maps)
        if array.ndim not in (2, 3, 4):
            expected = "weights must be [layers, heads, queries, keys], or have fewer axes in front"
            raise ValueError(f"{expected}; got shape {array.shape}")
        blocks.append((words, array.reshape((1,) * (4 - array.ndim) + array.shape)))
    return draw_attention(blocks, tokens or [], title)
