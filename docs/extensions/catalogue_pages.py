"""Pages that are made from the catalogue while the site is built: one for each encoding, and the reference.

They lie in docs/encodings and docs/reference, and are not kept.
"""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import posenc
from posenc.lab.description import listing
from posenc.lab.description.describe import show
from posenc.lab.results import figures
from posenc.lessons import lessons

ROW = "| {} | {} |"


def write(path: Path, text: str) -> None:
    """Write a page, unless it is there as it is: what has not changed is not built again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def encoding_page(name: str, folder: Path) -> str:
    card = listing.card(name)
    shown = show(name, tokens=64, dim=64, heads=4, words=("the", "dog", "bit", "the", "man"), shift=1)
    pictures = []
    for picture, figure in shown.figures.items():
        file = folder / "pictures" / f"{name}-{picture}.png"
        figures.save(figure, file)
        pictures.append(f"![{name}: {picture.replace('_', ' ')}](pictures/{file.name})\n")
    facts = [ROW.format(what, words) for what, words in listing.card_in_words(card) if what != "idea"]
    return "\n".join(
        [
            f"# {name}",
            "",
            f"{card['idea']}",
            "",
            "```{eval-rst}",
            f".. autoclass:: posenc.{card['class']}",
            "   :members: forward",
            "```",
            "",
            "## What is known of it",
            "",
            "| | |",
            "|---|---|",
            *facts,
            "",
            *(["## What it looks like", "", *pictures] if pictures else []),
        ]
    )


def make(app: Sphinx) -> None:
    source = Path(app.srcdir)
    folder = source / "encodings"
    names = posenc.names()
    for name in names:
        write(folder / f"{name}.md", encoding_page(name, folder))
    rows = [ROW.format(f"[{name}]({name}.md)", listing.card(name)["idea"]) for name in names]
    tree = ["```{toctree}", ":hidden:", "", *names, "```", ""]
    head = ["# Encodings", "", "One page for each, made from the code.", "", *tree]
    write(folder / "index.md", "\n".join([*head, "| encoding | what it does |", "|---|---|", *rows, ""]))


def lesson_pages(app: Sphinx) -> None:
    """The lessons lie in the package, beside what checks their exercises."""
    folder = Path(app.srcdir) / "lessons"
    names = [f"{lesson.place:02d}-{lesson.name.replace('_', '-')}" for lesson in lessons()]
    for lesson, name in zip(lessons(), names, strict=True):
        write(folder / f"{name}.md", lesson.text)
    head = ["# Lessons", "", "From nothing to the choice of an encoding; each runs in under a minute.", ""]
    write(folder / "index.md", "\n".join([*head, "```{toctree}", "", *names, "```", ""]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", make)
    app.connect("builder-inited", lesson_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
