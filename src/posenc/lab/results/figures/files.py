"""Write figures as files of an exact size, whole or not at all."""

import contextlib
import io
import textwrap
import warnings
from collections.abc import Generator
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from posenc.foreign import quote, visible
from posenc.lab import store
from posenc.lab.results.figures.layout import group_thousands
from posenc.lab.results.figures.style import styled

FORMATS = ("pdf", "svg", "png")


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise ValueError(f"a figure is written as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {quote(name)}")


@contextlib.contextmanager
def fixed_layout(fig: Figure) -> Generator[None]:
    """Lay the figure out once and keep the layout, which each rendering would otherwise compute again.

    Raises ValueError if there is no room for the axes.
    """
    group_thousands(fig)
    engine = fig.get_layout_engine()
    with warnings.catch_warnings():
        # A third party's spec may have letters that the font lacks; an empty box is no error.
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
    """Fold the labels that are longer than their axes; return whether there were any."""
    folded_any = False
    for ax in fig.axes:
        for label, end in ((ax.xaxis.label, "width"), (ax.yaxis.label, "height")):
            words, room = label.get_text(), getattr(ax.bbox, end)
            extent = getattr(label.get_window_extent(), end)
            if extent > 1.1 * room and " " in words and "\n" not in words:
                label.set_text("\n".join(textwrap.wrap(words, max(8, int(0.92 * len(words) * room / extent)))))
                folded_any = True
    return folded_any


@styled
def png(fig: Figure) -> bytes:
    """Return the figure as a PNG file on its own background."""
    out = io.BytesIO()
    dots = matplotlib.rcParams["savefig.dpi"]
    with fixed_layout(fig):
        original_dpi, fig.dpi = fig.dpi, fig.dpi if dots == "figure" else dots
        FigureCanvasAgg(fig).print_png(out, pil_kwargs={"compress_level": 4})
        fig.dpi = original_dpi
    return out.getvalue()


@styled
def svg(fig: Figure, *, text: bool = True) -> str:
    """Return the figure as an SVG document without background, with escaped text and no control characters.

    text  False draws the letters as shapes, which look the same without the font
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    background = fig.get_facecolor()
    fig.set_facecolor("none")
    with fixed_layout(fig), matplotlib.rc_context({"svg.fonttype": "none"} if text else {}):
        FigureCanvasSVG(fig).print_svg(out, metadata={"Date": None, "Creator": None})
    fig.set_facecolor(background)
    # matplotlib escapes markup but not control characters, which XML forbids.
    return visible(out.getvalue())


@styled
def pdf(fig: Figure) -> bytes:
    """Return the figure as one PDF page of its size, with TrueType fonts, the same bytes each time."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    out = io.BytesIO()
    with fixed_layout(fig):
        FigureCanvasPdf(fig).print_pdf(out, metadata={"CreationDate": None})
    return out.getvalue()


def save(fig: Figure, path: Path | str, *, svg_text: bool = False) -> Path:
    """Write the figure, whole or not at all. The ending of the name, .pdf, .svg or .png, chooses the format.

    The file has the size of the figure: a PDF has 72 points to the inch, a PNG savefig.dpi dots.

    svg_text       keep the words of an SVG as text, which can be searched and edited, but needs the font

    Save in the same `using` block in which the figure was drawn: fonts are looked up when a figure is written.

    Raises ValueError for another ending, a size without room for the axes, and svg_text of another format; CannotWrite.
    """
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    check_format(ending)
    if svg_text and ending != "svg":
        raise ValueError(f"svg_text is for .svg files, got {quote(path.name)}; leave it out")
    store.write(path, {"pdf": pdf, "png": png, "svg": lambda fig: svg(fig, text=svg_text).encode()}[ending](fig))
    return path
