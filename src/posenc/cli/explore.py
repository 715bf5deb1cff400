"""`posenc explore`: an interactive page of encodings and a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from posenc.cli.options import Comparison, Positional, Specs, Usage


@dataclass
class Explore:
    """Write an interactive page of encodings as one file.

    Example: posenc explore rotary alibi --run runs/compare

    The page needs no network and no other file.
    """

    specs: Positional[Specs] = ()
    """The encodings. Default: the best-known ones."""
    comparison: Comparison = None
    """A folder of posenc compare: its curves, trained tables and attention. Default: a small one that ships."""
    out: Annotated[Path, Usage("PATH")] = Path("runs/explorer.html")
    """The file to write."""
    open: bool = False
    """Open the page in the browser."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.explorer.page import explore
        from posenc.lab import store

        with terminal.show_status("computing ..."):
            text = explore(self.specs, run=self.comparison)
        store.write(self.out, text.encode())
        terminal.say(f"Explorer: {self.out}")
        if self.open:
            terminal.open_page(self.out)
