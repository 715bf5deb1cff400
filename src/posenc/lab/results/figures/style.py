"""The look of figures: the house style below the caller's, and one look for each encoding.

The caller's settings of matplotlib (rcParams, matplotlibrc or `using`) win; the house style replaces only settings
that are at matplotlib's default. Global state does not change.
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

from posenc.foreign import quote, regular_file, suggestion
from posenc.lab.appearance import LIGHT, RAMP, places

STYLE = Path(__file__).with_name("posenc.mplstyle")
HOUSE_STYLE: dict[Any, Any] = dict(matplotlib.rc_params_from_file(STYLE, use_default_template=False))
HOUSE_STYLE["axes.prop_cycle"] = cycler("color", LIGHT)

INK, SOFT = HOUSE_STYLE["text.color"], HOUSE_STYLE["axes.edgecolor"]
GRID, PAPER = HOUSE_STYLE["grid.color"], HOUSE_STYLE["figure.facecolor"]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "★")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
END_LINE = (0, (4, 3))
"""The dashes of the line at the trained length."""

DIVERGING, SEQUENTIAL = "RdBu_r", "viridis"

NARROW = 5.0
"""Narrower figures (inches) are for a column of a paper: their letters and lines are smaller."""
NARROW_STYLE: dict[Any, Any] = {
    "font.size": 7.0,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.0,
    "axes.titlepad": 4.0,
    "legend.handlelength": 2.0,
    "legend.columnspacing": 1.2,
}

# The names of the settings in `using`: they win even if they are matplotlib's default.
_caller_settings: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def using(*styles: str | Path | Mapping[str, Any]) -> Generator[None]:
    """Draw and save in these matplotlib styles, the later above the earlier, within a `with` block.

    styles  each the path of a file, the name of a style of matplotlib, or settings as in rcParams

    Their settings win, also if they are matplotlib's default; all others are those of the house style.

    Raises ValueError for an unknown style or setting; CannotRead for a file that is not regular.

    >>> with using({"font.size": 8, "axes.grid": False}):
    ...     points("medium")
    8.0
    """
    with matplotlib.rc_context():
        names: set[str] = set()
        for style in styles:
            settings = style_settings(style)
            try:
                matplotlib.style.use(settings)
            except (KeyError, ValueError) as error:
                raise ValueError(f"matplotlib does not take the setting: {' '.join(str(error).split())}") from None
            names |= set(settings)
        token = _caller_settings.set(_caller_settings.get() | names)
        try:
            yield
        finally:
            _caller_settings.reset(token)


def style_settings(style: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(style, Mapping):
        return dict(style)
    if Path(style).exists():
        regular_file(Path(style))
        return dict(matplotlib.rc_params_from_file(Path(style), use_default_template=False))
    library = matplotlib.style.library
    if str(style) in library:
        return dict(library[str(style)])
    raise ValueError(
        f"no matplotlib style {quote(str(style))}: it is no file, and none of matplotlib's own names"
        f"{suggestion(str(style), tuple(library)) or f', such as {sorted(library)[-1]}'}"
    )


@contextlib.contextmanager
def house_style() -> Generator[None]:
    """Draw in the house style alone, without the caller's settings: the page replaces its colours."""
    token = _caller_settings.set(frozenset())
    try:
        with matplotlib.style.context("default"):
            yield
    finally:
        _caller_settings.reset(token)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to draw with the house style below the caller's settings."""

    @functools.wraps(draw)
    def inner(*args: P.args, **options: P.kwargs) -> R:
        width = options.get("width")
        look = HOUSE_STYLE | NARROW_STYLE if isinstance(width, (int, float)) and width < NARROW else HOUSE_STYLE
        default, settings = matplotlib.rcParamsDefault, matplotlib.rcParams
        unset = {name: look[name] for name in look.keys() - _caller_settings.get() if settings[name] == default[name]}
        with matplotlib.rc_context(unset), np.errstate(all="ignore"):
            return draw(*args, **options)

    return inner


def ink() -> str:
    """Return the colour of text and of lines that belong to no encoding."""
    return matplotlib.rcParams["text.color"]


def soft() -> str:
    return matplotlib.rcParams["axes.edgecolor"]


def paper() -> str:
    """Return the background colour, which separates a mark from its line."""
    return matplotlib.rcParams["figure.facecolor"]


def thin() -> float:
    """Return the width of a line among many."""
    return matplotlib.rcParams["lines.linewidth"] * 0.8


def points(size: str | float) -> float:
    """Return a font size, such as "small", in points."""
    return FontProperties(size=size).get_size_in_points()


@dataclass(frozen=True)
class Look:
    """How an encoding is drawn in all figures."""

    place: int
    color: str
    marker: str
    glyph: str
    dashes: Any

    @property
    def gid(self) -> str:
        """The id in an SVG by which a page highlights the encoding in all figures."""
        return f"encoding-{self.place}"

    @property
    def line(self) -> dict[str, Any]:
        """The options of its line; the marks have an edge in the background colour."""
        edge = {"markeredgecolor": paper(), "markeredgewidth": 0.6}
        return {"color": self.color, "marker": self.marker, "linestyle": self.dashes, "gid": self.gid, **edge}


@styled
def color(spec: str) -> str:
    """Return the colour of an encoding, the same in all figures."""
    return look(places([spec])[spec]).color


def look(place: int) -> Look:
    """Return the look at a place of the palette, in the colours of the style's cycle."""
    colours = matplotlib.rcParams["axes.prop_cycle"].by_key().get("color", LIGHT)
    # The marker shifts by one each time the colours repeat, so that a pair repeats only after 64 encodings.
    turn = place // len(LIGHT)
    shape = (place + turn) % len(MARKERS)
    dashes = DASHES[(place + turn + turn // len(MARKERS)) % len(DASHES)]
    return Look(place, colours[place % len(LIGHT) % len(colours)], MARKERS[shape], GLYPHS[shape], dashes)


def shade(place: int, count: int) -> dict[str, Any]:
    """Return the colour and the dashes of one of `count` ordered lines."""
    last = len(RAMP) - 1
    step = place % len(RAMP) if count > len(RAMP) else round(place * last / max(1, count - 1))
    return {"color": RAMP[step], "linestyle": DASHES[place // len(RAMP) % len(DASHES)]}
