"""`posenc explore`: a page that shows encodings, a run and a checkpoint, and that people can touch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from posenc.cli.options import File


@dataclass
class Explore:
    """Write one HTML page that shows encodings, and moves: sliders, hands, arrows, curves, attention of trained models.

    Example: posenc explore rotary alibi --run runs/compare

    The page needs no network and nothing beside itself.
    """

    specs: Positional[tuple[str, ...]] = ()
    """The encodings, as specs. Default: the best known."""
    folder: Annotated[Path | None, arg(name="run", metavar="PATH", help_behavior_hint="(optional)")] = None
    """The folder of a comparison: its curves, its trained tables, where its models look. Default: a small one that ships."""
    checkpoint: File = None
    """A folder in Hugging Face's form, a GGUF file, or the name of a fetched model."""
    out: Path = Path("runs/explorer.html")
    """The file to write."""
    serve: bool = False
    """Serve the page on this machine alone until Ctrl-C, besides writing it."""
    open: bool = False
    """Open the page in the browser."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.explorer.page import explore
        from posenc.lab import store

        with terminal.doing("computing ..."):
            text = explore(self.specs, run=self.folder, checkpoint=self.checkpoint)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        store.write(self.out, text.encode())
        terminal.say(f"Explorer: {self.out}")
        return 0
