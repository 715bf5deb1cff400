"""Figures of what encodings look like after training: what they add, turn by and bias, as records keep it.

Each takes records, `posenc.lab.load(folder, what="records")`, or some of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from posenc.lab.appearance import short
from posenc.lab.results import summary
from posenc.lab.results.figures import arrays, layout
from posenc.lab.results.figures.measured import checked, looks
from posenc.lab.results.figures.style import BROKEN, ink, soft, styled, thin
from posenc.lab.results.summary import Record

if TYPE_CHECKING:
    from typing_extensions import Unpack


Pictures = list[tuple[str, Record, Any]]
"""(encoding, record, picture) of each encoding."""


def pictured(records: Sequence[Record], kind: str) -> Pictures:
    """One picture of each encoding: of a run that learned, where there is one, and that saw most positions."""
    best: dict[str, Record] = {}
    for label, run in summary.labelled(checked(records)):
        if summary.get(run, "pictures", kind):
            best[label] = max(best.get(label, run), run, key=summary.worth)
    return [(label, run, run["pictures"][kind]) for label, run in best.items()]


def extent(picture: Any) -> int:
    return len(picture) if isinstance(picture, list) else len(summary.get(picture, "distance") or [])


def beyond_training(run: Record, shown: float) -> list[float]:
    """How many positions training has shown, where a picture of so many goes past them."""
    trained = summary.trained_tokens(run)
    return [trained] if trained and trained < shown else []


def goes_past(records: Sequence[Record], kind: str) -> bool:
    """Whether a picture, added or bias, shows more positions than training has, and marks where that ended."""
    return any(beyond_training(run, extent(picture)) for _, run, picture in pictured(records, kind))


def tables_of(records: Sequence[Record], kind: str, axes: int) -> Pictures:
    """What `pictured` finds, as arrays of so many axes."""
    arrays = [(label, run, summary.numbers(picture)) for label, run, picture in pictured(records, kind)]
    return [(label, run, array) for label, run, array in arrays if array.ndim == axes and array.size]


@styled
def added(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """What each adding encoding adds to the embeddings, position by channel, a panel for each encoding.

    Rows below a dashed line were never trained. `size` is as in `extrapolation`.

    None where nothing is added. Raises ValueError for a table, and for other axes.
    """
    tables = tables_of(records, "added", 2)[: layout.MOST_PANELS]
    if not tables:
        return None
    on = layout.grid_of(len(tables), 2, (4.5, 2.9), "What is added to the embeddings", **size)
    # On colours of any kind the word needs paper behind it.
    look = {"ha": "right", "color": "black", "bbox": {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.8}}
    for ax, (label, run, table) in zip(on.axes, tables, strict=True):
        arrays.draw_table(ax, table, short(label, 28))
        for length in beyond_training(run, len(table)):
            ax.axhline(length - 0.5, color=ink(), linestyle=BROKEN, linewidth=1)
            layout.note(ax, "trained", (0.995, length - 0.5), ("axes fraction", "data"), (0, 2), **look)
    return on.figure


@styled
def wavelengths(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """How many positions each pair needs for a full turn; above the dashed line it never completed one in training.

    `size` is as in `extrapolation`.

    None where nothing turns. Raises ValueError for a table, and for other axes.
    """
    tables = tables_of(records, "wavelengths", 1)
    if not tables:
        return None
    on = layout.sheet(1, 1, (9, 3.9), "Wavelength of each pair of channels", **size)
    (ax,), appearance = on.axes, looks(records)
    labels = {label for label, _, _ in tables}
    # The trained length of each task, since an encoding has one picture for all of them.
    seen = (summary.trained_tokens(run) for label, run in summary.labelled(records) if label in labels)
    lengths = sorted({length for length in seen if length is not None})
    names = []
    for label, _, values in tables:
        own, title = appearance[label], short(label, 28)
        arrays.draw_wavelengths(ax, values, max(lengths, default=None), own, title)
        names += [(pair, values[pair], title, own.gid) for pair in np.flatnonzero(np.isfinite(values))[-1:]]
    arrays.finish_wavelengths(ax, lengths)
    layout.name_points(ax, names)
    return on.figure


@styled
def similarity(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """How alike positions look: cosine between what is added, and for rotary the mean cosine by distance.

    A panel for each encoding that adds, and one for all that turn. `size` is as in `extrapolation`.

    None where nothing is added and nothing turns. Raises ValueError for a table, and for other axes.
    """
    tables, turned = tables_of(records, "added", 2)[: layout.MOST_PANELS - 1], tables_of(records, "rotation", 1)
    if not tables and not turned:
        return None
    on = layout.grid_of(len(tables) + bool(turned), 3, (3.3, 3.1), "How alike two positions look", **size)
    for ax, (label, _, table) in zip(on.axes, tables, strict=False):
        arrays.draw_similarity(ax, arrays.cosines(table), short(label, 28))
    if turned:
        ax, appearance = on.axes[-1], looks(records)
        for label, _, values in turned:
            own, title = appearance[label], short(label, 28)
            ax.plot(values, color=own.color, linestyle=own.dashes, linewidth=thin(), gid=own.gid, label=title)
        ax.axhline(0, color=soft(), linewidth=0.8)
        ax.set(title="rotation, mean over pairs", xlabel="distance, positions")
        ax.set(ylabel="mean cosine", ylim=(-1.05, 1.05))
        layout.legend_beside(ax)
        layout.mark_trained(ax, {length for _, run, v in turned for length in beyond_training(run, len(v))})
    return on.figure


@styled
def bias(records: Sequence[Record], **size: "Unpack[layout.Size]") -> Figure | None:
    """What is added to the logit at each distance, a line for each head, a panel for each encoding.

    Right of a dashed line are distances that training never showed. `size` is as in `extrapolation`.

    None where no logit is biased. Raises ValueError for a table, and for other axes.
    """
    found = pictured(records, "bias")
    biases = [one for one in found if summary.numbers(summary.get(one[2], "heads")).ndim == 2][: layout.MOST_PANELS]
    if not biases:
        return None
    on = layout.grid_of(len(biases), 3, (3.1, 2.7), "Bias on the logit by distance", **size)
    for ax, (label, run, heads) in zip(on.axes, biases, strict=True):
        arrays.draw_bias(ax, summary.numbers(heads.get("distance")), summary.numbers(heads["heads"]), short(label, 28))
        layout.mark_trained(ax, beyond_training(run, extent(heads)))
    return on.figure
