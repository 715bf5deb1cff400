"""Figures as files: exactly as large as asked, whole or not at all."""

import contextlib
import io
import textwrap
import warnings
from collections.abc import Generator
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from posenc.foreign import quoted, visible
from posenc.lab import store
from posenc.lab.results.figures.layout import part_thousands
from posenc.lab.results.figures.style import styled

FORMATS = ("pdf", "svg", "png")


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise ValueError(f"a figure is written as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {quoted(name)}")


@contextlib.contextmanager
def settled(fig: Figure) -> Generator[None]:
    """Lay the figure out once; every rendering keeps the places, where it would otherwise lay out again.

    Raises ValueError where its axes find no room.
    """
    part_thousands(fig)
    engine = fig.get_layout_engine()
    with warnings.catch_warnings():
        # A third party's spec may hold letters that the font lacks; an empty box is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            if engine is not None:
                FigureCanvasAgg(fig)
                engine.execute(fig)
                if fold_labels(fig):
                    engine.execute(fig)
        except UserWarning:
            width, height = fig.get_size_inches()
            raise ValueError(
                f"{width:g} by {height:g} inches are too few for this figure: no room is left for its axes; give more, "
                f"smaller letters (font.size), or leave the title out"
            ) from None
        fig.set_layout_engine(None)
        yield


def fold_labels(fig: Figure) -> bool:
    """Fold the labels that are longer than their axes, and say whether there were any."""
    long = False
    for ax in fig.axes:
        for label, end in ((ax.xaxis.label, "width"), (ax.yaxis.label, "height")):
            words, room = label.get_text(), getattr(ax.bbox, end)
            taken = getattr(label.get_window_extent(), end)
            if taken > 1.1 * room and " " in words and "\n" not in words:
                label.set_text("\n".join(textwrap.wrap(words, max(8, int(0.92 * len(words) * room / taken)))))
                long = True
    return long


@styled
def png(fig: Figure) -> bytes:
    """The figure as a PNG file that can be read alone, on white."""
    out = io.BytesIO()
    dots = matplotlib.rcParams["savefig.dpi"]
    with settled(fig):
        before, fig.dpi = fig.dpi, fig.dpi if dots == "figure" else dots
        FigureCanvasAgg(fig).print_png(out, pil_kwargs={"compress_level": 4})
        fig.dpi = before
    return out.getvalue()


@styled
def svg(fig: Figure, *, text: bool = True) -> str:
    """The figure as an SVG document on no background, with its words as text: escaped, and no control characters.

    text  False draws the letters as shapes, which look the same where the font is missing
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    kept = fig.get_facecolor()
    fig.set_facecolor("none")
    with settled(fig), matplotlib.rc_context({"svg.fonttype": "none"} if text else {}):
        FigureCanvasSVG(fig).print_svg(out, metadata={"Date": None, "Creator": None})
    fig.set_facecolor(kept)
    # matplotlib escapes markup alone, and a document with control characters is no XML.
    return visible(out.getvalue())


@styled
def pdf(fig: Figure) -> bytes:
    """The figure as one page of its size, with TrueType fonts, the same bytes each time."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    out = io.BytesIO()
    with settled(fig):
        FigureCanvasPdf(fig).print_pdf(out, metadata={"CreationDate": None})
    return out.getvalue()


def save(fig: Figure, path: Path | str, *, svg_text: bool = False) -> Path:
    """Write the figure, whole or not at all; the ending of the name, .pdf, .svg or .png, chooses the format.

    It is as large as it was drawn: a PDF's page has 72 points to the inch, a PNG savefig.dpi dots.

    svg_text       keep the words of an SVG as text, which can be searched and edited, but needs the font

    Save in the same `using` block in which the figure was drawn: fonts are found when a figure is written.

    Raises ValueError for another ending, for a size that leaves the axes no room, and for svg_text where no SVG is
    written; CannotWrite where the file cannot be.
    """
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    check_format(ending)
    if svg_text and ending != "svg":
        raise ValueError(f"svg_text is for .svg files, got {quoted(path.name)}; leave it out")
    store.write(path, {"pdf": pdf, "png": png, "svg": lambda fig: svg(fig, text=svg_text).encode()}[ending](fig))
    return path
