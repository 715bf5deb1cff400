"""Lay out axes, legends, marks and labels in a figure of any width."""

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
from posenc.lab.results.figures.style import END_LINE, Look, ink, points

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_PANELS = 24
"""The most panels in a figure; more would make a page slow to open."""

LETTER_WIDTH = 0.58
"""The width of a letter, as a share of its size."""

MAX_SIDE = 100.0
"""The longest side in inches; a larger picture would not fit into memory."""


def letters(inches: float, size: str | float) -> int:
    """Return how many letters of a size fit on a line."""
    return max(8, int(inches * 72 / (LETTER_WIDTH * points(size))))


def axes_width(ax: Axes) -> float:
    """Return the width of axes in inches."""
    return ax.bbox.width / ax.figure.dpi


def wrap_title(title: str, inches: float) -> str:
    """Wrap a title of axes to the width of a figure."""
    fits = letters(inches - min(0.9, inches / 5), matplotlib.rcParams["axes.titlesize"])
    return "\n".join(textwrap.wrap(visible(title), fits))


def token_label(token: Any) -> str:
    """Return a token as an axis label, with blanks and rare characters spelled out."""
    text = str(token)
    return "␣" if text == " " else text.encode("unicode_escape").decode("ascii")[:8]


def check_size(**sides: float | None) -> None:
    for name, inches in sides.items():
        if inches is not None and not 0.5 <= inches <= MAX_SIDE:
            wrong = f"{name} must lie between 0.5 and {MAX_SIDE:g} inches, got {inches:g}"
            raise ValueError(f"{wrong}; a column of a paper is some 3.25 inches wide")


def figure(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure of a size in inches, with a title wrapped to its width."""
    check_size(width=width, height=height)
    out = Figure(figsize=(width, height), layout="constrained")
    if title:
        # Bold letters are wider.
        fits = letters(width * 0.97, points(matplotlib.rcParams["figure.titlesize"]) * 1.1)
        out.suptitle("\n".join(textwrap.wrap(visible(title), fits)), x=0.01, ha="left")
    return out


class Size(TypedDict, total=False):
    """The options of every figure of results.

    width, height  inches; letters and lines are smaller below 5 inches
    title          another title, or "" for none
    ax             axes to draw into, one for each panel; then the lines have names for `ax.legend()`
    """

    width: float | None
    height: float | None
    title: str | None
    ax: Axes | Sequence[Axes] | None


@dataclass(frozen=True)
class Sheet:
    """The axes of a figure: of its own, or of the caller."""

    figure: Figure
    axes: list[Axes]
    is_own: bool
    grows: bool

    def legend(self, handles: Sequence[Any]) -> None:
        """A legend under the figure; in the caller's axes the lines have names for `ax.legend()`."""
        if self.is_own:
            legend(self.figure, handles, grow=self.grows)

    def share(self, label: str, axis: str) -> None:
        """Label all panels at once, or each panel in the caller's axes."""
        if self.is_own and len(self.axes) > 1:
            (self.figure.supxlabel if axis == "x" else self.figure.supylabel)(
                label, fontsize=matplotlib.rcParams["axes.labelsize"]
            )
        else:
            for ax in self.axes:
                ax.set(**{f"{axis}label": label})


def sheet(
    count: int,
    columns: int,
    natural: tuple[float, float],
    words: str,
    *,
    subplot_options: Mapping[str, Any] | None = None,
    width: float | None = None,
    height: float | None = None,
    title: str | None = None,
    ax: Axes | Sequence[Axes] | None = None,
) -> Sheet:
    """Return `count` axes in rows: the caller's, or a new figure's, by default in its natural size.

    words   the title if `title` is None; "" leaves it out
    subplot_options  for Figure.subplots: sharex, sharey

    Raises ValueError for another number of axes, and for a size or a title together with the caller's axes.
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
        return Sheet(whole, axes, is_own=False, grows=False)
    wide = natural[0] if width is None else width
    # A narrow figure has smaller letters, so it can be lower too, but by less.
    high = natural[1] * (wide / natural[0]) ** 0.6 if height is None else height
    out = figure(wide, high, words if title is None else title)
    columns = max(1, min(columns, count))
    axes = list(out.subplots(-(-count // columns), columns, squeeze=False, **(subplot_options or {})).flat)
    for spare in axes[count:]:
        spare.remove()
    return Sheet(out, axes[:count], is_own=True, grows=height is None)


def panel_grid(count: int, columns: int, panel: tuple[float, float], words: str, **size: "Unpack[Size]") -> Sheet:
    """Return a sheet of equal panels, as many side by side as fit."""
    if width := size.get("width"):
        columns = min(columns, int(width / 1.6))
    columns = max(1, min(columns, count))
    natural = max(columns * panel[0], 4.2), -(-count // columns) * panel[1] + 0.45
    return sheet(count, columns, natural, words, **size)


def legend(fig: Figure, handles: Sequence[Any], *, columns: int = 8, grow: bool = True) -> None:
    """Add a legend under the figure in as many columns as fit; the figure grows by its height."""
    if not handles:
        return
    size = points(matplotlib.rcParams["legend.fontsize"])
    # A handle and the gap between columns are as wide as seven letters.
    longest = 7 + max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(columns, len(handles), letters(fig.get_figwidth(), size) // longest))
    if grow:
        fig.set_figheight(fig.get_figheight() + 1.75 * size / 72 * -(-len(handles) // columns) + 0.05)
    fig.legend(handles=handles, loc="outside lower center", ncols=columns)


def legend_beside(ax: Axes) -> None:
    """Add a legend of the named lines of a panel, right of it."""
    lines = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    if lines:
        style: dict[str, Any] = {"fontsize": "x-small", "borderaxespad": 0.2, "handlelength": 1.6}
        ax.legend(handles=lines, loc="upper left", bbox_to_anchor=(1, 1), ncols=-(-len(lines) // 12), **style)


def legend_handle(label: str, style: Look, note: str = "") -> Line2D:
    """Return the line of an encoding for a legend."""
    return Line2D([], [], label=f"{short(label)}{note}", **style.line)


def mark_trained(ax: Axes, lengths: Iterable[float], *, horizontal: bool = False, on_top: bool = False) -> None:
    """Draw a dashed line at each trained length. Only the last has a label, so that no two overlap."""
    lengths = sorted(set(lengths))
    for length in lengths:
        (ax.axhline if horizontal else ax.axvline)(length, color=ink(), linestyle=END_LINE, linewidth=1)
    if not lengths:
        return
    words, last = f"trained to {summary.join_words([summary.count(length) for length in lengths])}", lengths[-1]
    if horizontal:
        note(ax, words, (0.995, last), ("axes fraction", "data"), (0, 3), ha="right")
    elif on_top:
        note(ax, words, (last, 1.0), ("data", "axes fraction"), (0, 2), ha="center")
    else:
        note(ax, words, (last, 1.0), ("data", "axes fraction"), (4, 0), va="top")


def note(
    ax: Axes, words: str, place: tuple[float, float], coordinates: Any, away: tuple[float, float], **look: Any
) -> None:
    """Write a small note at an offset in points from a place of the axes."""
    look = {"ha": "left", "va": "bottom", "fontsize": "small", **look}
    ax.annotate(words, place, xycoords=coordinates, xytext=away, textcoords="offset points", **look)


def name_points(ax: Axes, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write a label beside each (x, y, label, gid) without overlaps; call it after the scales are set."""
    # Autoscaling is lazy: only these calls update the limits that the transforms read.
    ax.get_xlim(), ax.get_ylim()
    size, per_point = points("x-small"), ax.figure.dpi / 72
    marks = [ax.transData.transform((x, y)) / per_point for x, y, *_ in labels]
    # (left, right, height) in points, of the marks and of the labels so far.
    boxes = [(x - 5.0, x + 5.0, y) for x, y in marks]
    for (x, y, words, group), (middle, foot) in zip(labels, marks, strict=True):
        wide = LETTER_WIDTH * size * len(words)
        aside = 6.0 if middle + 6 + wide < ax.bbox.x1 / per_point else -6.0
        left = middle + 6 if aside > 0 else middle - 6 - wide
        tries = [step * way * 1.15 * size for step in range(2 * len(labels) + 1) for way in (1, -1)]
        rise = next(
            offset
            for offset in tries
            if not any(
                abs(foot + offset - height) < 1.1 * size and left < end and start < left + wide
                for start, end, height in boxes
            )
        )
        boxes.append((left, left + wide, foot + rise))
        ha = "left" if aside > 0 else "right"
        note(ax, words, (x, y), "data", (aside, rise), ha=ha, va="center", fontsize="x-small", gid=group)


def plain_log(axis: Any) -> None:
    """Put plain numbers on a logarithmic axis."""
    low, high = axis.get_view_interval()
    is_short = low > 0 and high / low < 40
    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0) if is_short else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: format_number(x)))
    axis.set_minor_formatter(NullFormatter())


def format_number(value: float) -> str:
    """Format a number of an axis, with commas between thousands.

    >>> format_number(1000), format_number(0.5), format_number(1e12)
    ('1,000', '0.5', '1e+12')
    """
    return f"{value:,.10g}" if abs(value) < 1e9 else f"{value:.0e}"


def group_thousands(fig: Figure) -> None:
    """Put commas into the numbers of all axes that reach a thousand; matplotlib has none by default."""
    for axis in (axis for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)):
        if type(axis.get_major_formatter()) is ScalarFormatter and np.abs(axis.get_view_interval()).max() >= 1000:
            axis.set_major_formatter(FuncFormatter(lambda x, _: format_number(x).replace("-", "\N{MINUS SIGN}")))


def integer_ticks(ax: Axes, max_ticks: int) -> None:
    """Put few ticks at integers on both axes, without a grid, as images need."""
    max_ticks = min(max_ticks, max(2, int(2.5 * min(ax.bbox.width, ax.bbox.height) / ax.figure.dpi)))
    ax.xaxis.set_major_locator(MaxNLocator(max_ticks, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(max_ticks, integer=True))
    ax.grid(visible=False)


def color_bar(image: AxesImage, axes: Axes | Sequence[Axes], **options: Any) -> None:
    """Add a colour bar beside the axes, as an image. Its 256 steps would be 256 shapes in an SVG."""
    bar: Any = image.figure.colorbar(image, ax=axes, **options)
    bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)
