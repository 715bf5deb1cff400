"""Figures on their way out of a report: into the page, as SVG whose colours follow it, and into files beside it."""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from posenc.foreign import visible
from posenc.lab.appearance import LIGHT, RAMP
from posenc.lab.results import figures
from posenc.lab.results.figures.style import house


@dataclass(frozen=True)
class Files:
    """How the files of figures are to be; where nothing is asked for, they look as in the page.

    formats        pdf, svg, png
    style          a matplotlib style, its file or its name, above the house style
    width, height  inches, honoured exactly
    titles         whether figures have titles; a paper has captions
    svg_text       keep the words of SVGs as text

    Raises ValueError for a format, a style or a size that there is not, and for svg_text where no SVG is written.
    """

    formats: tuple[str, ...] = ("png",)
    style: str | None = None
    width: float | None = None
    height: float | None = None
    titles: bool = True
    svg_text: bool = False

    def __post_init__(self) -> None:
        for name in self.formats:
            figures.check_format(name)
        figures.check_size(width=self.width, height=self.height)
        if self.svg_text and "svg" not in self.formats:
            raise ValueError(f"svg_text is for SVG files, and the figures are written as {', '.join(self.formats)}")
        with figures.using(*self.styles):
            pass

    @property
    def styles(self) -> tuple[str, ...]:
        return () if self.style is None else (self.style,)

    @property
    def as_in_the_page(self) -> bool:
        return (self.style, self.width, self.height, self.titles) == (None, None, None, True)


class Drawer:
    """Draws each figure for the page and for the files beside it, and hands back what the page shows."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.folder, self.files = folder, files or Files()
        self.names: set[str] = set()

    def __call__(self, name: str, draw: Callable[..., Any], says: str, shows: str) -> dict[str, Any] | None:
        """What the page shows of a figure; None where `draw` makes none.

        draw   makes the figure, of a size and a title where they are asked for
        says   the caption: how the figure is read
        shows  the result in words, for who does not see it
        """
        with house():
            drawn = draw()
            if drawn is None:
                return None
            name = self.unused(re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:70] or "figure")
            in_page = Markup(for_page(figures.svg(drawn), len(self.names), visible(shows or name)))
            if self.files.as_in_the_page:
                self.save(drawn, name)
        if not self.files.as_in_the_page:
            title = None if self.files.titles else ""
            try:
                with figures.using(*self.files.styles):
                    self.save(draw(width=self.files.width, height=self.files.height, title=title), name)
            except ValueError as error:
                raise ValueError(f"the figure '{name}' cannot be drawn so: {error}") from None
        written = [f"figures/{name}.{kind}" for kind in self.files.formats]
        return {"name": name, "files": written, "svg": in_page, "says": says}

    def save(self, drawn: Any, name: str) -> None:
        for kind in self.files.formats:
            figures.save(drawn, self.folder / f"{name}.{kind}", svg_text=self.files.svg_text and kind == "svg")

    def unused(self, name: str) -> str:
        found, number = name, 1
        # File systems that do not tell a from A would let one figure overwrite another.
        while found.lower() in self.names:
            number += 1
            found = f"{name}-{number}"
        self.names.add(found.lower())
        return found


def for_page(svg: str, place: int, says: str) -> str:
    """A matplotlib SVG made ready to stand inside the page, next to others, in light and dark."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    # Names of encodings' lines become classes, so that the page can point at one encoding in all figures.
    svg = re.sub(r'id="encoding-(\d+)"', r'class="encoding-\1"', svg)
    # Names inside one figure must not meet those of another.
    svg = re.sub(r'\bid="', f'id="f{place}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#f{place}-", svg)
    colours = {figures.INK: "ink", figures.SOFT: "soft", figures.GRID: "grid", figures.PAPER: "paper"}
    colours |= {colour: f"c{index}" for index, colour in enumerate((*LIGHT, *RAMP))}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{colours[m[0]]})" if m[0] in colours else m[0], svg)
    # Images are named by what they hold, so equal ones share a name; nothing refers to them.
    svg = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", svg)
    # Shorter coordinates, but only inside tags: the numbers that people read stay whole.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), svg)
    svg = re.sub(r' (?:width|height)="[^"]*pt"', "", svg, count=2)
    # Words have one size in all figures: nine inches are 62 rem, where the page has room.
    box = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    points = float(box[1]) if box else 648.0
    size = f'style="--natural: {points / 648 * 62:.1f}rem"'
    return svg.replace("<svg", f'<svg {size} role="img" aria-label="{html.escape(says, quote=True)}"', 1)
