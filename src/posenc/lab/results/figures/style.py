"""The look of figures: the house style, the caller's own above it, and one look for each encoding everywhere.

What the caller has set in matplotlib's rcParams, in a matplotlibrc or by `using`, is kept; the house style fills in
what is still at matplotlib's own default. Nothing outside is changed.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import matplotlib.style
import numpy as np
from cycler import cycler
from matplotlib.font_manager import FontProperties

from posenc.foreign import near, quoted, regular
from posenc.lab.appearance import LIGHT, RAMP, places

STYLE = Path(__file__).with_name("posenc.mplstyle")
HOUSE: dict[Any, Any] = dict(matplotlib.rc_params_from_file(STYLE, use_default_template=False))
HOUSE["axes.prop_cycle"] = cycler("color", LIGHT)

INK, SOFT, GRID, PAPER = (HOUSE[name] for name in ("text.color", "axes.edgecolor", "grid.color", "figure.facecolor"))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "★")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
BROKEN = (0, (4, 3))
"""The line where training ended."""

DIVERGING, SEQUENTIAL = "RdBu_r", "viridis"

NARROW = 5.0
"""A figure of less than so many inches stands in a column of a paper: its letters and lines are smaller."""
IN_A_COLUMN: dict[Any, Any] = {
    "font.size": 7.0,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.0,
    "axes.titlepad": 4.0,
    "legend.handlelength": 2.0,
    "legend.columnspacing": 1.2,
}

# The names of settings that `using` was given: there even matplotlib's default is what the caller wants.
_given: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def using(*styles: str | Path | Mapping[str, Any]) -> Generator[None]:
    """Draw and save in these matplotlib styles, the later above the earlier, within a `with` block.

    styles  each the path of a file, the name of a style that matplotlib has, or settings as in rcParams

    What they say holds, also where it is matplotlib's default; what they leave open is as in the house style.

    Raises ValueError for a style that is neither a file nor a name that matplotlib knows, and for settings that it
    does not have; CannotRead for what is no regular file.

    >>> with using({"font.size": 8, "axes.grid": False}):
    ...     points("medium")
    8.0
    """
    with matplotlib.rc_context():
        names: set[str] = set()
        for style in styles:
            settings = settings_of(style)
            try:
                matplotlib.style.use(settings)
            except (KeyError, ValueError) as error:
                raise ValueError(f"matplotlib does not take the setting: {' '.join(str(error).split())}") from None
            names |= set(settings)
        token = _given.set(_given.get() | names)
        try:
            yield
        finally:
            _given.reset(token)


def settings_of(style: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(style, Mapping):
        return dict(style)
    if Path(style).exists():
        regular(Path(style))
        return dict(matplotlib.rc_params_from_file(Path(style), use_default_template=False))
    known = matplotlib.style.library
    if str(style) in known:
        return dict(known[str(style)])
    raise ValueError(
        f"no matplotlib style {quoted(str(style))}: it is no file, and none of matplotlib's own names"
        f"{near(str(style), tuple(known)) or f', such as {sorted(known)[-1]}'}"
    )


@contextlib.contextmanager
def house() -> Generator[None]:
    """Draw in the house style alone, whatever the caller's settings are: the page sets its colours by it."""
    token = _given.set(frozenset())
    try:
        with matplotlib.style.context("default"):
            yield
    finally:
        _given.reset(token)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw with the house style under the caller's settings, and leave those as they were."""

    @functools.wraps(draw)
    def inner(*args: P.args, **options: P.kwargs) -> R:
        width = options.get("width")
        look = HOUSE | IN_A_COLUMN if isinstance(width, (int, float)) and width < NARROW else HOUSE
        default, now = matplotlib.rcParamsDefault, matplotlib.rcParams
        left_open = {name: look[name] for name in look if name not in _given.get() and now[name] == default[name]}
        with matplotlib.rc_context(left_open), np.errstate(all="ignore"):
            return draw(*args, **options)

    return inner


def ink() -> str:
    """The colour of letters and of lines that belong to no encoding."""
    return matplotlib.rcParams["text.color"]


def soft() -> str:
    return matplotlib.rcParams["axes.edgecolor"]


def paper() -> str:
    """The colour behind the figure, which parts a mark from its line."""
    return matplotlib.rcParams["figure.facecolor"]


def thin() -> float:
    """How wide the lines are of which there are many."""
    return matplotlib.rcParams["lines.linewidth"] * 0.8


def points(size: str | float) -> float:
    """A size of letters, such as "small", in points."""
    return FontProperties(size=size).get_size_in_points()


@dataclass(frozen=True)
class Look:
    """How one encoding is drawn, everywhere."""

    place: int
    color: str
    marker: str
    glyph: str
    dashes: Any

    @property
    def gid(self) -> str:
        """The name in an SVG by which a page points at the encoding in all figures."""
        return f"encoding-{self.place}"

    @property
    def line(self) -> dict[str, Any]:
        """How its line is drawn, with a mark at each point that paper parts from it."""
        edge = {"markeredgecolor": paper(), "markeredgewidth": 0.6}
        return {"color": self.color, "marker": self.marker, "linestyle": self.dashes, "gid": self.gid, **edge}


@styled
def color(spec: str) -> str:
    """The colour of an encoding, the same in all figures."""
    return look(places([spec])[spec]).color


def look(place: int) -> Look:
    """The look at this place, in the colours of the style's cycle."""
    colours = matplotlib.rcParams["axes.prop_cycle"].by_key().get("color", LIGHT)
    # The marker moves on by one each time the colours start again, so that a pair comes back only after 64 encodings.
    turn = place // len(LIGHT)
    shape = (place + turn) % len(MARKERS)
    dashes = DASHES[(place + turn + turn // len(MARKERS)) % len(DASHES)]
    return Look(place, colours[place % len(LIGHT) % len(colours)], MARKERS[shape], GLYPHS[shape], dashes)


def shade(place: int, count: int) -> dict[str, Any]:
    """The colour and the dashes of one of so many lines that have an order."""
    last = len(RAMP) - 1
    step = place % len(RAMP) if count > len(RAMP) else round(place * last / max(1, count - 1))
    return {"color": RAMP[step], "linestyle": DASHES[place // len(RAMP) % len(DASHES)]}
