"""`posenc explore`: a page that shows encodings and a run, and that people can touch."""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from posenc.cli.options import Comparison, Positional, Specs, Whole, taking


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
    out: Annotated[Path, taking("PATH")] = Path("runs/explorer.html")
    """The file to write."""
    serve: bool = False
    """Serve the page on this machine alone until Ctrl-C, besides writing it."""
    port: Whole = None
    """The port of --serve. Default: a free one."""
    open: bool = False
    """Open the page in the browser."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.explorer.page import explore
        from posenc.explorer.serve import Server
        from posenc.lab import store

        if self.port is not None and not self.serve:
            raise ValueError("--port says where --serve listens; give --serve too")
        # A port that cannot be had is refused before anything is computed.
        with Server(port=self.port or 0) if self.serve else nullcontext() as server:
            with terminal.doing("computing ..."):
                text = explore(self.specs, run=self.comparison)
            store.write(self.out, text.encode())
            terminal.say(f"Explorer: {self.out}")
            if server:
                server.page = text.encode()
                terminal.say(f"Served at {server.url} until Ctrl-C")
                sys.stdout.flush()
                if self.open:
                    self.open_page(server.url)
                server.serve_forever()
            elif self.open:
                self.open_page(self.out.resolve().as_uri())
        return 0

    def open_page(self, address: str) -> None:
        """In the reader's browser; a machine without one is told where the page lies."""
        from posenc import terminal

        if not terminal.opened(address):
            terminal.note(f"No browser opened here: open {address} in one, or copy {self.out} to where there is one")
