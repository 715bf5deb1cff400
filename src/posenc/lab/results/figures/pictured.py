"""Figures of what encodings look like after training: what they add, turn by and bias, as records keep it.

Each takes the records themselves, `posenc.lab.load(folder, what="records")`: a table holds no pictures.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from posenc.lab.results import summary
from posenc.lab.results.figures.arrays import (
    cosines,
    draw_bias,
    draw_similarity,
    draw_table,
    draw_wavelengths,
    finish_wavelengths,
)
from posenc.lab.results.figures.layout import (
    MOST_PANELS,
    grid_of,
    legend_beside,
    mark_trained,
    name_points,
    note,
    numbers,
    sheet,
    short,
)
from posenc.lab.results.figures.measured import looks
from posenc.lab.results.figures.style import BROKEN, ink, soft, styled, thin
from posenc.lab.results.frames import records_of
from posenc.lab.results.summary import Record

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from posenc.lab.results.figures.layout import Size


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


def beyond_training(run: Record, shown: float) -> float | None:
    """How many positions training has shown, where a picture of so many goes past them."""
    trained = summary.trained_tokens(run)
    return trained if trained and trained < shown else None


def goes_past(records: Sequence[Record], kind: str) -> bool:
    """Whether a picture, added or bias, shows more positions than training has, and marks where that ended."""
    return any(beyond_training(run, extent(picture)) for _, run, picture in pictured(records, kind))


def tables_of(records: Sequence[Record], kind: str, axes: int) -> list[tuple[str, Record, Any]]:
    """What `pictured` finds, as arrays of so many axes."""
    found = [(label, run, numbers(picture)) for label, run, picture in pictured(records, kind)]
    return [(label, run, array) for label, run, array in found if array.ndim == axes and array.size]


def biases_of(records: Sequence[Record]) -> list[tuple[str, Record, Any]]:
    return [
        (label, run, b) for label, run, b in pictured(records, "bias") if numbers(summary.get(b, "heads")).ndim == 2
    ]


@styled
def added(
    records: Sequence[Record],
    **size: "Unpack[Size]",
) -> Figure | None:
    """What each adding encoding adds to the embeddings, position by channel, a panel for each encoding.

    Rows below a dashed line were never trained. `size` is as in `extrapolation`.

    None where nothing is added. Raises ValueError for a table, which holds no pictures, and for other axes.
    """
    records = records_of(records, "records")
    found = tables_of(records, "added", 2)[:MOST_PANELS]
    if not found:
        return None
    words = several_tasks(found)
    on = grid_of(len(found), 2, (4.5, 2.9), "What is added to the embeddings", **size)
    # On colours of any kind the word needs paper behind it.
    behind = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.8}
    for one, (label, run, table) in zip(on.axes, found, strict=True):
        draw_table(one, table, words(label, run))
        if length := beyond_training(run, len(table)):
            one.axhline(length - 0.5, color=ink(), linestyle=BROKEN, linewidth=1)
            note(
                one,
                "trained",
                (0.995, length - 0.5),
                ("axes fraction", "data"),
                (0, 2),
                ha="right",
                color="black",
                bbox=behind,
            )
    return on.figure


@styled
def wavelengths(
    records: Sequence[Record],
    **size: "Unpack[Size]",
) -> Figure | None:
    """How many positions each pair needs for a full turn; above the dashed line it never completed one in training.

    `size` is as in `extrapolation`.

    None where nothing turns. Raises ValueError for a table, which holds no pictures, and for other axes.
    """
    records = records_of(records, "records")
    found = tables_of(records, "wavelengths", 1)
    if not found:
        return None
    on = sheet(1, 1, (9, 3.9), "Wavelength of each pair of channels", **size)
    appearance, words = looks(records), several_tasks(found)
    drawn = {label for label, _, _ in found}
    # Equal pictures of several tasks are drawn once, with the trained length of each task.
    lengths = summary.shown_positions([r for r in summary.results(records) if r.label in drawn])
    named = []
    for label, run, values in found:
        own = appearance[label]
        draw_wavelengths(on.axes[0], values, max(lengths, default=None), own, words(label, run))
        turning = np.flatnonzero(np.isfinite(values))
        if len(turning):
            named.append((turning[-1], values[turning[-1]], words(label, run), f"encoding-{own.place}"))
    finish_wavelengths(on.axes[0], lengths)
    name_points(on.axes[0], named)
    return on.figure


@styled
def similarity(
    records: Sequence[Record],
    **size: "Unpack[Size]",
) -> Figure | None:
    """How alike positions look: cosine between what is added, and for rotary the mean cosine by distance.

    A panel for each encoding that adds, and one for all that turn. `size` is as in `extrapolation`.

    None where nothing is added and nothing turns. Raises ValueError for a table, which holds no pictures, and for
    other axes.
    """
    records = records_of(records, "records")
    tables, turned = tables_of(records, "added", 2)[: MOST_PANELS - 1], tables_of(records, "rotation", 1)
    if not tables and not turned:
        return None
    count = len(tables) + bool(turned)
    on = grid_of(count, 3, (3.3, 3.1), "How alike two positions look", **size)
    words = several_tasks(tables)
    for one, (label, run, table) in zip(on.axes, tables, strict=False):
        draw_similarity(one, cosines(table), words(label, run))
    if turned:
        one, appearance, words = on.axes[-1], looks(records), several_tasks(turned)
        for label, run, values in turned:
            own = appearance[label]
            group, name = f"encoding-{own.place}", words(label, run)
            one.plot(values, color=own.color, linestyle=own.dashes, linewidth=thin(), gid=group, label=name)
        one.axhline(0, color=soft(), linewidth=0.8)
        one.set(
            title="rotation, mean over pairs", xlabel="distance, positions", ylabel="mean cosine", ylim=(-1.05, 1.05)
        )
        legend_beside(one)
        mark_trained(one, {length for _, run, v in turned if (length := beyond_training(run, len(v)))})
    return on.figure


@styled
def bias(
    records: Sequence[Record],
    **size: "Unpack[Size]",
) -> Figure | None:
    """What is added to the logit at each distance, a line for each head, a panel for each encoding.

    Right of a dashed line are distances that training never showed. `size` is as in `extrapolation`.

    None where no logit is biased. Raises ValueError for a table, which holds no pictures, and for other axes.
    """
    records = records_of(records, "records")
    found = biases_of(records)[:MOST_PANELS]
    if not found:
        return None
    words = several_tasks(found)
    on = grid_of(len(found), 3, (3.1, 2.7), "Bias on the logit by distance", **size)
    for one, (label, run, b) in zip(on.axes, found, strict=True):
        draw_bias(one, numbers(b.get("distance")), numbers(b["heads"]), words(label, run))
        length = beyond_training(run, extent(b))
        mark_trained(one, [length] if length else [])
    return on.figure
