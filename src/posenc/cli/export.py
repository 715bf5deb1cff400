"""`posenc export`: a model as one file that runs without posenc."""

import json
from dataclasses import dataclass
from pathlib import Path

from posenc.cli.options import Files, Positional


@dataclass
class Export:
    """Write a model as one file, as ONNX or .pt2.

    Example: posenc export runs/train --out model.onnx

    The file runs without posenc; .pt2 is torch.export's. A decoder's graph has a KV cache as inputs and outputs. Before
    the file is written it is run and compared with the model at lengths from 1 to 200 tokens.
    """

    path: Positional[Path]
    """A folder of posenc train."""
    out: Path
    """The file to write, ending in .onnx or .pt2."""
    cache: bool = True
    """Give a decoder's graph a KV cache."""
    trust: Files = ()
    """Your own files, such as path/to/mine.py, whose code the model may run. No other code is run."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.export import export_trained

        with terminal.show_status(f"exporting {self.path} ..."):
            export = export_trained(self.path, self.out, cached=self.cache, trusted_files=self.trust)
        if self.json:
            print(json.dumps({"file": str(export.path), "difference": export.difference, "about": dict(export.about)}))
            return
        lengths = ", ".join(map(str, export.lengths))
        terminal.say(f"Compared with the model at {lengths} tokens: the same to {export.difference:.0e} of a logit.")
        terminal.say(f"Model: {export.path}")
