"""Writes the table of what exports into the guide: python tests/write_exports.py (minutes), or only rows, by name."""

import re
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from posenc import Decoder, catalogue
from posenc.export import CannotExport, export

GUIDE = Path(__file__).parent.parent / "docs/guides/export.md"
FORMS = (".pt2", ".onnx")
BEGIN, END = "<!-- measured -->\n", "<!-- end -->\n"


def model_of(name: str) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(vocab=11, dim=24, heads=3, layers=1, max_len=256, encoding=name)
    with torch.no_grad():
        for encoding in model.stack.encodings:
            for parameter in encoding.parameters():
                # A table of zeros would agree with anything.
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def export_result(name: str, form: str, folder: Path) -> str:
    """How far the exported decoder is from the model, as the guide has it; or why there is none."""
    try:
        exported = export(model_of(name), folder / f"{name}{form}")
    except CannotExport as error:
        return str(error).partition(f" to {form}: ")[2]
    return f"{exported.difference:.0e}, up to {exported.lengths[-1]} tokens"


def rows() -> dict[str, list[str]]:
    """The table as the guide has it: name -> what was found for each form."""
    results = GUIDE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", results, re.MULTILINE)
    return {name: cells for name, *cells in lines}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        texts, arguments = rows(), sys.argv[1:] or catalogue.names()
        for name in arguments:
            texts[name] = [export_result(name, form, Path(folder)) for form in FORMS]
            print(name, *texts[name], flush=True)
    table = "| encoding | .pt2 | .onnx |\n|---|---|---|\n"
    table += "".join(f"| `{name}` | {' | '.join(texts[name])} |\n" for name in sorted(texts))
    old_text, rest = GUIDE.read_text(encoding="utf-8").split(BEGIN)
    GUIDE.write_text(old_text + BEGIN + "\n" + table + "\n" + END + rest.split(END)[1], encoding="utf-8")
