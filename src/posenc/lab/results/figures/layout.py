"""Sheets of axes, legends, marks and words that fit a figure of any width."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from posenc.foreign import visible
from posenc.lab.appearance import short
from posenc.lab.results import summary
from posenc.lab.results.figures.style import BROKEN, Look, ink, points

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_PANELS = 24
"""So that any number of encodings gives a page that opens."""

LETTER = 0.58
"""How wide a letter is, as a share of its size."""

LONGEST_SIDE = 100.0
"""Inches; no paper is larger, and a picture of more would not fit into memory."""


def letters(inches: float, size: str | float) -> int:
    """How many letters of a size fit on a line."""
    return max(8, int(inches * 72 / (LETTER * points(size))))


def width_of(ax: Axes) -> float:
    """How wide axes are, in inches."""
    return ax.bbox.width / ax.figure.dpi


def wrapped(title: str, inches: float) -> str:
    """A title of axes in as many lines as a figure of this width needs."""
    fits = letters(inches - min(0.9, inches / 5), matplotlib.rcParams["axes.titlesize"])
    return "\n".join(textwrap.wrap(visible(title), fits))


def readable(token: Any) -> str:
    """A token as an axis label: blanks and what a font may lack are written out."""
    text = str(token)
    return "␣" if text == " " else text.encode("unicode_escape").decode("ascii")[:8]


def check_size(**sides: float | None) -> None:
    for name, inches in sides.items():
        if inches is not None and not 0.5 <= inches <= LONGEST_SIDE:
            wrong = f"{name} must lie between 0.5 and {LONGEST_SIDE:g} inches, got {inches:g}"
            raise ValueError(f"{wrong}; a column of a paper is some 3.25 inches wide")


def figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure of a size in inches, with a title that is folded to its width."""
    check_size(width=width, height=height)
    out = Figure(figsize=(width, height), layout="constrained")
    if title:
        # It is bold, so its letters are wider.
        fits = letters(width * 0.97, points(matplotlib.rcParams["figure.titlesize"]) * 1.1)
        out.suptitle("\n".join(textwrap.wrap(visible(title), fits)), x=0.01, ha="left")
    return out


class Size(TypedDict, total=False):
    """What every figure of results takes: how large it is, and where it is drawn.

    width, height  inches; letters and lines are smaller below 5 inches
    title          its own words, or "" for none
    ax             axes to draw into, one for each panel; then the lines carry their names for `ax.legend()`
    """

    width: float | None
    height: float | None
    title: str | None
    ax: Axes | Sequence[Axes] | None


@dataclass(frozen=True)
class Sheet:
    """The axes that a figure is drawn into: its own, or those that the caller has given."""

    figure: Figure
    axes: list[Axes]
    own: bool
    grows: bool

    def legend(self, handles: Sequence[Any]) -> None:
        """A legend under the figure; in the caller's axes the lines carry their names, for `ax.legend()`."""
        if self.own:
            legend(self.figure, handles, grow=self.grows)

    def share(self, what: str, axis: str) -> None:
        """One label for all panels of a figure of its own; in the caller's axes each panel has it."""
        if self.own and len(self.axes) > 1:
            (self.figure.supxlabel if axis == "x" else self.figure.supylabel)(
                what, fontsize=matplotlib.rcParams["axes.labelsize"]
            )
        else:
            for ax in self.axes:
                ax.set(**{f"{axis}label": what})


def sheet(
    count: int,
    columns: int,
    natural: tuple[float, float],
    words: str,
    *,
    shared: Mapping[str, Any] | None = None,
    width: float | None = None,
    height: float | None = None,
    title: str | None = None,
    ax: Axes | Sequence[Axes] | None = None,
) -> Sheet:
    """`count` axes in rows: of the caller, or of a new figure that has its natural size where none is given.

    words   the title, where `title` is None; "" leaves it out
    shared  as for Figure.subplots: sharex, sharey

    Raises ValueError for another number of axes, and for a size or a title of axes that are the caller's own.
    """
    if ax is not None:
        axes = [ax] if isinstance(ax, Axes) else list(np.ravel(np.asarray(ax, dtype=object)))
        if len(axes) != count or not all(isinstance(panel, Axes) for panel in axes):
            raise ValueError(
                f"this figure has {count} panel{'s' * (count != 1)}, so ax must be {count} matplotlib axes, "
                f"got {len(axes)} of {type(axes[0]).__name__ if axes else 'nothing'}"
            )
        if not (width is height is title is None):
            raise ValueError("axes of your own have their size and title; leave width, height and title out")
        whole: Any = axes[0].figure
        return Sheet(whole, axes, own=False, grows=False)
    wide = natural[0] if width is None else width
    # A narrow figure has smaller letters, and so can be lower too, but not by as much.
    high = natural[1] * (wide / natural[0]) ** 0.6 if height is None else height
    out = figure(wide, high, words if title is None else title)
    columns = max(1, min(columns, count))
    axes = list(out.subplots(-(-count // columns), columns, squeeze=False, **(shared or {})).flat)
    for spare in axes[count:]:
        spare.remove()
    return Sheet(out, axes[:count], own=True, grows=height is None)


def grid_of(count: int, columns: int, panel: tuple[float, float], words: str, **size: "Unpack[Size]") -> Sheet:
    """A sheet of equal panels: as many side by side as the width has room for."""
    if width := size.get("width"):
        columns = min(columns, int(width / 1.6))
    columns = max(1, min(columns, count))
    natural = max(columns * panel[0], 4.2), -(-count // columns) * panel[1] + 0.45
    return sheet(count, columns, natural, words, **size)


def legend(fig: Figure, handles: Sequence[Any], *, columns: int = 8, grow: bool = True) -> None:
    """A legend under the figure, which grows to make room for it; in as many columns as its width takes."""
    if not handles:
        return
    size = points(matplotlib.rcParams["legend.fontsize"])
    # A handle, and what stands between columns, take as much as seven letters.
    longest = 7 + max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(columns, len(handles), letters(fig.get_figwidth(), size) // longest))
    if grow:
        fig.set_figheight(fig.get_figheight() + 1.75 * size / 72 * -(-len(handles) // columns) + 0.05)
    fig.legend(handles=handles, loc="outside lower center", ncols=columns)


def legend_beside(ax: Axes) -> None:
    """A legend of the named lines of one panel, right of it."""
    lines = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    if lines:
        style: dict[str, Any] = {"fontsize": "x-small", "borderaxespad": 0.2, "handlelength": 1.6}
        ax.legend(handles=lines, loc="upper left", bbox_to_anchor=(1, 1), ncols=-(-len(lines) // 12), **style)


def handle(label: str, own: Look, note: str = "") -> Line2D:
    """The line of an encoding in a legend."""
    return Line2D([], [], label=f"{short(label)}{note}", **own.line)


def mark_trained(ax: Axes, lengths: Iterable[float], *, horizontal: bool = False, above: bool = False) -> None:
    """A dashed line for each length that training ended at; the words are beside the last one, for two would touch."""
    lengths = sorted(set(lengths))
    for length in lengths:
        (ax.axhline if horizontal else ax.axvline)(length, color=ink(), linestyle=BROKEN, linewidth=1)
    if not lengths:
        return
    words, last = f"trained to {summary.listed([summary.count(length) for length in lengths])}", lengths[-1]
    if horizontal:
        note(ax, words, (0.995, last), ("axes fraction", "data"), (0, 3), ha="right")
    elif above:
        note(ax, words, (last, 1.0), ("data", "axes fraction"), (0, 2), ha="center")
    else:
        note(ax, words, (last, 1.0), ("data", "axes fraction"), (4, 0), va="top")


def note(
    ax: Axes, words: str, place: tuple[float, float], coordinates: Any, away: tuple[float, float], **look: Any
) -> None:
    """A few small words at a place of the axes, so many points away from it."""
    look = {"ha": "left", "va": "bottom", "fontsize": "small", **look}
    ax.annotate(words, place, xycoords=coordinates, xytext=away, textcoords="offset points", **look)


def name_points(ax: Axes, named: Sequence[tuple[float, float, str, str]]) -> None:
    """Words beside each of (x, y, words, gid), where no others stand yet; call it when the scales are set."""
    # Limits that follow the data are found only when they are asked for; the transforms do not ask.
    ax.get_xlim(), ax.get_ylim()
    size, per_point = points("x-small"), ax.figure.dpi / 72
    marks = [ax.transData.transform((x, y)) / per_point for x, y, *_ in named]
    # (left, right, height) in points: of the marks themselves, and of the words beside them.
    taken = [(x - 5.0, x + 5.0, y) for x, y in marks]
    for (x, y, words, group), (middle, foot) in zip(named, marks, strict=True):
        wide = LETTER * size * len(words)
        aside = 6.0 if middle + 6 + wide < ax.bbox.x1 / per_point else -6.0
        left = middle + 6 if aside > 0 else middle - 6 - wide
        tries = [step * way * 1.15 * size for step in range(2 * len(named) + 1) for way in (1, -1)]
        above = next(
            rise
            for rise in tries
            if not any(
                abs(foot + rise - other) < 1.1 * size and left < end and start < left + wide
                for start, end, other in taken
            )
        )
        taken.append((left, left + wide, foot + above))
        ha = "left" if aside > 0 else "right"
        note(ax, words, (x, y), "data", (aside, above), ha=ha, va="center", fontsize="x-small", gid=group)


def plain_log(axis: Any) -> None:
    """A log axis with plain numbers on it."""
    low, high = axis.get_view_interval()
    few = low > 0 and high / low < 40
    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: in_full(x)))
    axis.set_minor_formatter(NullFormatter())


def in_full(value: float) -> str:
    """A number on an axis: thousands are parted, as in all words beside it.

    >>> in_full(1000), in_full(0.5), in_full(1e12)
    ('1,000', '0.5', '1e+12')
    """
    return f"{value:,.10g}" if abs(value) < 1e9 else f"{value:.0e}"


def part_thousands(fig: Figure) -> None:
    """Write the numbers of all axes that reach a thousand as everywhere; matplotlib's own have no comma."""
    for axis in (axis for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)):
        if type(axis.get_major_formatter()) is ScalarFormatter and np.abs(axis.get_view_interval()).max() >= 1000:
            axis.set_major_formatter(FuncFormatter(lambda x, _: in_full(x).replace("-", "\N{MINUS SIGN}")))


def whole_ticks(ax: Axes, most: int) -> None:
    """Few ticks at whole numbers on both axes, and no grid: for pictures of rows and columns."""
    most = min(most, max(2, int(2.5 * min(ax.bbox.width, ax.bbox.height) / ax.figure.dpi)))
    ax.xaxis.set_major_locator(MaxNLocator(most, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(most, integer=True))
    ax.grid(visible=False)


def scale_bar(image: AxesImage, axes: Axes | Sequence[Axes], **options: Any) -> None:
    """A scale of colours beside the axes; as an image, for its 256 steps would be as many shapes in the page."""
    bar: Any = image.figure.colorbar(image, ax=axes, **options)
    bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)
