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
    the file appears it is run, and its numbers are compared with the model's at lengths from 1 to 200 tokens.
    """

    path: Positional[Path]
    """A folder that posenc train has filled."""
    out: Path
    """The file to write, ending in .onnx or .pt2."""
    cache: bool = True
    """Whether a decoder's graph has a KV cache."""
    trust: Files = ()
    """Files of your own, such as path/to/mine.py, whose code the model may ask for. No other code is run."""
    json: bool = False
    """Print what was written as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.export import export_trained

        with terminal.doing(f"exporting {self.path} ..."):
            done = export_trained(self.path, self.out, cached=self.cache, own=self.trust)
        if self.json:
            print(json.dumps({"file": str(done.path), "difference": done.difference, "about": dict(done.about)}))
            return
        lengths = ", ".join(map(str, done.lengths))
        terminal.say(f"Compared with the model at {lengths} tokens: the same to {done.difference:.0e} of a logit.")
        terminal.say(f"Model: {done.path}")
