"""Draw encodings after training, from records: what they add, rotate by and bias.

Each function takes records of `posenc.lab.load(folder, what="records")`, or some of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from posenc.lab.appearance import short
from posenc.lab.results import summary
from posenc.lab.results.figures import arrays, layout
from posenc.lab.results.figures.scores import check_records, looks
from posenc.lab.results.figures.style import END_LINE, ink, soft, styled, thin
from posenc.lab.results.summary import Record

if TYPE_CHECKING:
    from typing_extensions import Unpack


Pictures = list[tuple[str, Record, Any]]
"""(encoding, record, picture) of each encoding."""


def best_pictures(records: Sequence[Record], kind: str) -> Pictures:
    """Return one picture of each encoding: of a run that learned, if any, with the most positions."""
    best: dict[str, Record] = {}
    for label, run in summary.labelled_records(check_records(records)):
        if summary.get(run, "pictures", kind):
            best[label] = max(best.get(label, run), run, key=summary.training_rank)
    return [(label, run, run["pictures"][kind]) for label, run in best.items()]


def extent(picture: Any) -> int:
    return len(picture) if isinstance(picture, list) else len(summary.get(picture, "distance") or [])


def training_end(run: Record, positions: float) -> list[float]:
    """Return the number of trained positions, in a list that is empty if the picture has no more."""
    trained_tokens = summary.trained_tokens(run)
    return [trained_tokens] if trained_tokens and trained_tokens < positions else []


def exceeds_training(records: Sequence[Record], kind: str) -> bool:
    """Whether a picture, added or bias, has more positions than training had."""
    return any(training_end(run, extent(picture)) for _, run, picture in best_pictures(records, kind))


def picture_arrays(records: Sequence[Record], kind: str, axes: int) -> Pictures:
    """Return the best pictures as arrays, only those of so many axes."""
    arrays = [(label, run, summary.float_array(picture)) for label, run, picture in best_pictures(records, kind)]
    return [(label, run, array) for label, run, array in arrays if array.ndim == axes and array.size]


@styled
def added(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """Draw what each encoding adds to the embeddings, position by channel, a panel for each.

    Rows below a dashed line were never trained. `size` is as in `extrapolation`.

    None if nothing is added. Raises ValueError for a table, and for a wrong number of axes.
    """
    tables = picture_arrays(records, "added", 2)[: layout.MAX_PANELS]
    if not tables:
        return None
    sheet = layout.panel_grid(len(tables), 2, (4.5, 2.9), "What is added to the embeddings", **size)
    # The label needs a background on top of the colours.
    look = {"ha": "right", "color": "black", "bbox": {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.8}}
    for ax, (label, run, table) in zip(sheet.axes, tables, strict=True):
        arrays.draw_table(ax, table, short(label, 28))
        for length in training_end(run, len(table)):
            ax.axhline(length - 0.5, color=ink(), linestyle=END_LINE, linewidth=1)
            layout.note(ax, "trained", (0.995, length - 0.5), ("axes fraction", "data"), (0, 2), **look)
    return sheet.figure


@styled
def wavelengths(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """Draw the positions per turn of each pair; above the dashed line no turn was completed in training.

    `size` is as in `extrapolation`.

    None if nothing rotates. Raises ValueError for a table, and for a wrong number of axes.
    """
    tables = picture_arrays(records, "wavelengths", 1)
    if not tables:
        return None
    sheet = layout.sheet(1, 1, (9, 3.9), "Wavelength of each pair of channels", **size)
    (ax,), appearance = sheet.axes, looks(records)
    labels = {label for label, _, _ in tables}
    # The trained length of each task, since an encoding has one picture for all of them.
    runs = [run for label, run in summary.labelled_records(records) if label in labels]
    lengths = sorted({length for run in runs if (length := summary.trained_tokens(run)) is not None})
    names = []
    for label, _, values in tables:
        style, title = appearance[label], short(label, 28)
        arrays.draw_wavelengths(ax, values, max(lengths, default=None), style, title)
        names += [(pair, values[pair], title, style.gid) for pair in np.flatnonzero(np.isfinite(values))[-1:]]
    arrays.finish_wavelengths(ax, lengths)
    layout.name_points(ax, names)
    return sheet.figure


@styled
def similarity(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """Draw the similarity of positions: cosines between added rows, and for rotary the mean cosine by distance.

    There is a panel for each encoding that adds, and one for all that rotate. `size` is as in `extrapolation`.

    None if nothing is added or rotates. Raises ValueError for a table, and for a wrong number of axes.
    """
    tables = picture_arrays(records, "added", 2)[: layout.MAX_PANELS - 1]
    rotations = picture_arrays(records, "rotation", 1)
    if not tables and not rotations:
        return None
    sheet = layout.panel_grid(len(tables) + bool(rotations), 3, (3.3, 3.1), "How alike two positions look", **size)
    for ax, (label, _, table) in zip(sheet.axes, tables, strict=False):
        arrays.draw_similarity(ax, arrays.cosines(table), short(label, 28))
    if rotations:
        ax, appearance = sheet.axes[-1], looks(records)
        for label, _, values in rotations:
            style, title = appearance[label], short(label, 28)
            ax.plot(values, color=style.color, linestyle=style.dashes, linewidth=thin(), gid=style.gid, label=title)
        ax.axhline(0, color=soft(), linewidth=0.8)
        ax.set(title="rotation, mean over pairs", xlabel="distance, positions")
        ax.set(ylabel="mean cosine", ylim=(-1.05, 1.05))
        layout.legend_beside(ax)
        layout.mark_trained(ax, {length for _, run, v in rotations for length in training_end(run, len(v))})
    return sheet.figure


@styled
def bias(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """Draw the bias of the logit by distance, a line for each head, a panel for each encoding.

    Right of a dashed line are distances that training never showed. `size` is as in `extrapolation`.

    None if no encoding has a bias. Raises ValueError for a table, and for a wrong number of axes.
    """
    best = best_pictures(records, "bias")
    biases = [entry for entry in best if summary.float_array(summary.get(entry[2], "heads")).ndim == 2]
    biases = biases[: layout.MAX_PANELS]
    if not biases:
        return None
    sheet = layout.panel_grid(len(biases), 3, (3.1, 2.7), "Bias on the logit by distance", **size)
    for ax, (label, run, heads) in zip(sheet.axes, biases, strict=True):
        distances, values = (summary.float_array(heads.get(name)) for name in ("distance", "heads"))
        arrays.draw_bias(ax, distances, values, short(label, 28))
        layout.mark_trained(ax, training_end(run, extent(heads)))
    return sheet.figure
