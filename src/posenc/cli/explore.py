"""`posenc explore`: a page that shows encodings and a run, and that people can touch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from posenc.cli.options import Comparison, Positional, Specs, Taking


@dataclass
class Explore:
    """Write a page of encodings to touch: a file that moves.

    Example: posenc explore rotary alibi --run runs/compare

    The page needs no network and nothing beside itself.
    """

    specs: Positional[Specs] = ()
    """The encodings. Default: the best known."""
    comparison: Comparison = None
    """A comparison's folder: its curves, its trained tables, where its models look. Default: a small one that ships."""
    out: Annotated[Path, Taking("PATH")] = Path("runs/explorer.html")
    """The file to write."""
    open: bool = False
    """Open the page in the browser."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.explorer.page import explore
        from posenc.lab import store

        with terminal.doing("computing ..."):
            text = explore(self.specs, run=self.comparison)
        store.write(self.out, text.encode())
        terminal.say(f"Explorer: {self.out}")
        if self.open:
            terminal.open_page(self.out)
