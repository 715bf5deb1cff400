"""Write a report's figures: into the page as SVG in its colours, and into files beside it."""

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
from posenc.lab.results.figures.style import house_style


@dataclass(frozen=True)
class Files:
    """Options of the files of figures; by default they look as in the page.

    formats        pdf, svg, png
    style          a matplotlib style, its file or its name, over the house style
    width, height  inches, exact
    titles         whether figures have titles; a paper has captions
    svg_text       keep the words of SVGs as text

    Raises ValueError for an unknown format, style or size, and for svg_text without the format svg.
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
    """Draws each figure for the page and for the files beside it."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.folder, self.files = folder, files or Files()
        self.names: set[str] = set()

    def __call__(self, name: str, draw: Callable[..., Any], caption: str, alt_text: str) -> dict[str, Any] | None:
        """Return a figure for the template of the page; None if `draw` returns None.

        draw      returns the figure; takes a size and a title
        caption   how to read the figure
        alt_text  the result in words
        """
        with house_style():
            figure = draw()
            if figure is None:
                return None
            name = self.unique_name(re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:70] or "figure")
            in_page = Markup(svg_for_page(figures.svg(figure), len(self.names), visible(alt_text or name)))
            if self.files.as_in_the_page:
                self.save(figure, name)
        if not self.files.as_in_the_page:
            title = None if self.files.titles else ""
            try:
                with figures.using(*self.files.styles):
                    self.save(draw(width=self.files.width, height=self.files.height, title=title), name)
            except ValueError as error:
                raise ValueError(f"the figure '{name}' cannot be drawn so: {error}") from None
        paths = [f"figures/{name}.{kind}" for kind in self.files.formats]
        return {"name": name, "files": paths, "svg": in_page, "says": caption}

    def save(self, figure: Any, name: str) -> None:
        for kind in self.files.formats:
            figures.save(figure, self.folder / f"{name}.{kind}", svg_text=self.files.svg_text and kind == "svg")

    def unique_name(self, name: str) -> str:
        candidate, number = name, 1
        # A file system that ignores case would let one figure overwrite another.
        while candidate.lower() in self.names:
            number += 1
            candidate = f"{name}-{number}"
        self.names.add(candidate.lower())
        return candidate


def svg_for_page(svg: str, number: int, alt_text: str) -> str:
    """Return a matplotlib SVG for the page: without size, in the page's colours, with ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    # The ids of encodings become classes, so that the page can highlight one encoding in all figures.
    svg = re.sub(r'id="encoding-(\d+)"', r'class="encoding-\1"', svg)
    # The ids of one figure must differ from those of another.
    svg = re.sub(r'\bid="', f'id="f{number}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#f{number}-", svg)
    colours = {figures.INK: "ink", figures.SOFT: "soft", figures.GRID: "grid", figures.PAPER: "paper"}
    colours |= {colour: f"c{index}" for index, colour in enumerate((*LIGHT, *RAMP))}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{colours[m[0]]})" if m[0] in colours else m[0], svg)
    # Images are named by their content, so equal ones share an id; nothing refers to them.
    svg = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", svg)
    # Round coordinates, but only inside tags: numbers in text stay exact.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), svg)
    svg = re.sub(r' (?:width|height)="[^"]*pt"', "", svg, count=2)
    # Letters have one size in all figures: nine inches are 62 rem.
    box = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    points = float(box[1]) if box else 648.0
    size = f'style="--natural: {points / 648 * 62:.1f}rem"'
    return svg.replace("<svg", f'<svg {size} role="img" aria-label="{html.escape(alt_text, quote=True)}"', 1)
