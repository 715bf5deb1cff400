"""Compare other libraries with the test vectors, in float32, and write what each gives as a page.

    posenc vectors all --out vectors
    python benchmarks/ports.py --vectors vectors --out docs/guides/ports.md

A port passes a case if no element differs by more than 1e-5 + 2^-22 times the largest position: an angle in float32
carries a few roundings of 2^-24 of itself. A port that fails has a reason, read in the library's source, and a
variation of its code that passes. The exit code is 1 if a failure has none, or if what had a reason passes now.
"""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from port_libraries import LIBRARIES
from port_libraries.kinds import SIX_HEADS, Case, Port
from posenc import vectors
from posenc.encoding.base import Shape
from posenc.vectors import vector_reader

PAGE = Path(__file__).resolve().parents[1] / "docs/guides/ports.md"
MARKS = {True: "fails", False: "passes"}

INTRODUCTION = """# Other libraries on the test vectors

`posenc vectors` writes the numbers that [a port](take-it-with-you.md#test-a-port) has to give. This page says which of
them other libraries give. `benchmarks/ports.py` writes it, and `tests/vectors/test_ports.py` runs the ports of what
is installed and compares them with it.

Each library is called through its own functions, in float32 on a CPU, with its default options but those that a family
names. The order of channels is adapted; so is a bias that differs by a constant for each query, which the softmax does
not see. Positions are given as ids or as an offset, or looked up in the table that the library makes. They go up to
4 L, with L = 512. A case passes if no element differs by more than $10^{-5} + 2^{-22} p$, where $p$ is the largest
position of the case: an angle in float32 carries a few roundings of $2^{-24}$ of itself. Tokens of padding and biases
of later keys are not compared.

`alibi-6-heads` is ALiBi with 6 heads, whose slopes follow another rule than those of a power of 2.
"""

RERUN = """## Run it again

```
python -m venv ports
ports/bin/pip install torch transformers x-transformers rotary-embedding-torch positional-encodings
ports/bin/pip install --no-deps timm torchtune attn-gym diffusers litgpt lightning lightning-utilities torchmetrics
ports/bin/pip install --no-deps keras keras-hub jsonargparse
ports/bin/pip install absl-py namex h5py optree ml-dtypes importlib_metadata Pillow psutil requests
export PYTHONPATH=src
ports/bin/python -m posenc vectors all --out vectors
ports/bin/python benchmarks/ports.py --vectors vectors --out docs/guides/ports.md
```

`--no-deps` is there because litgpt asks for another huggingface-hub than transformers, and keras-hub for TensorFlow;
Keras runs on PyTorch here. timm and torchtune are read file by file, since timm asks for a torchvision and torchtune
for an old torchao. A library that cannot be imported is listed with the reason. The exit code is 1 if a failure has no
reason, if the variation that shows the reason fails too, or if what had a reason passes now.
"""


@dataclass
class Row:
    """The result of a port: the largest difference of each case, or the error."""

    library: str
    port: Port
    differences: dict[str, float | str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    has_reason: bool = True  # a failure has a reason, and the variation passes

    @property
    def verdict(self) -> str:
        return f"fails: {', '.join(self.failures)}" if self.failures else "passes"

    @property
    def largest(self) -> str:
        errors = [text for text in self.differences.values() if isinstance(text, str)]
        return errors[0] if errors else f"{max(map(float, self.differences.values())):.1e}"

    @property
    def cells(self) -> tuple[str, ...]:
        cases = ", ".join(self.differences)
        return self.library, self.port.family, f"`{self.port.api}`", cases, self.verdict, self.largest, self.port.note


@dataclass
class Results:
    """The rows of all ports, the version of each library, and why a library has no rows."""

    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def families(folder: Path) -> dict[str, tuple[dict, dict[str, Tensor]]]:
    """Return the description and the arrays of each family, with ALiBi of six heads among them."""
    read = {path.stem: vector_reader.read(folder, path.stem) for path in sorted(folder.glob("*.json"))}
    by_name = {name: read[name] for name in vectors.FAMILIES if name in read}
    six_heads = vectors.vectors("alibi", Shape(dim=96, heads=6, head_dim=16, max_len=512))
    by_name[SIX_HEADS] = six_heads.description, six_heads.arrays
    return {
        name: (description, {key: torch.from_numpy(array) for key, array in arrays.items()})
        for name, (description, arrays) in by_name.items()
    }


def cases(description: dict, arrays: dict[str, Tensor]) -> Iterator[tuple[str, Case]]:
    """Yield each case with its name, for a batch of two."""
    for name in description["cases"]:
        q_at, k_at = (arrays[f"{side}_positions/{name}"] for side in "qk")
        q_at, k_at = (at.expand(2, *at.shape[1:]) for at in (q_at, k_at))
        mask = arrays[f"mask/{name}"].bool().expand(2, -1, -1)
        places = {"q": q_at, "k": k_at, "x": q_at}
        inputs = {x: arrays[x][..., -at.shape[1] :, :] for x, at in places.items() if x in arrays}
        expected = {x: arrays[f"{x}/{name}"] for x in (*places, "bias") if f"{x}/{name}" in arrays}
        yield name, Case(q_at, k_at, mask, inputs, expected)


def result(library: str, port: Port, description: dict, arrays: dict[str, Tensor]) -> Row:
    """Return the row of a port."""
    row = Row(library, port)
    for name, case in cases(description, arrays):
        if port.cases and name not in port.cases:
            continue
        try:
            difference = case.difference(port.outputs(case))
        except Exception as error:  # what a library raises is a result
            row.differences[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            passes = False
        else:
            if difference is None:
                continue
            row.differences[name], passes = difference, difference <= case.tolerance
        if not passes:
            row.failures.append(name)
            variation = None if port.variation is None else case.difference(port.variation(case))
            row.has_reason &= variation is not None and variation <= case.tolerance
    row.has_reason &= bool(row.failures) == bool(port.reason)
    return row


@torch.no_grad()
def results(folder: Path, libraries: tuple[str, ...] = tuple(LIBRARIES)) -> Results:
    """Return what every installed library gives."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    all_families, findings = families(folder), Results()
    weights = {
        "t5-bias": all_families["t5-bias"][1]["weight/table"],
        "learned": all_families["learned"][1]["weight/table"],
    }
    for library in libraries:
        try:
            findings.versions[library] = importlib.metadata.version(library)
            for port in LIBRARIES[library](weights):
                findings.rows.append(result(library, port, *all_families[port.family]))
        except ImportError as error:
            findings.versions.pop(library, None)
            findings.absent[library] = str(error).splitlines()[0] or type(error).__name__
    return findings


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def page(findings: Results) -> str:
    """Return the page."""
    names = list(findings.versions)
    by_family: dict[str, dict[str, list[Row]]] = {family: {} for family in (*vectors.FAMILIES, SIX_HEADS)}
    for row in findings.rows:
        by_family[row.port.family].setdefault(row.library, []).append(row)
    matrix = []
    for family, of_library in by_family.items():
        cells = []
        for name in names:
            failures = [bool(row.failures) for row in of_library.get(name, [])]
            share = f"{failures.count(False)} of {len(failures)} pass"
            cells.append("" if not failures else MARKS[failures[0]] if len(set(failures)) == 1 else share)
        matrix.append((f"`{family}`", *cells))
    text = INTRODUCTION + "\n## Which rows a library passes\n\nAn empty cell: the library has no such encoding, or has "
    text += "it in another form alone.\n\n" + table(("family", *names), matrix)
    failures = [row for row in findings.rows if row.failures]
    reasons = [(r.library, r.port.family, f"`{r.port.api}`", ", ".join(r.failures), r.port.reason) for r in failures]
    text += "\n## Why they fail\n\nEach variation was run, and passes.\n\n"
    text += table(("library", "family", "function", "cases", "reason"), reasons)
    text += "\n## Every port\n\n"
    head = ("library", "family", "function", "cases run", "result", "largest difference", "note")
    text += table(head, [row.cells for row in findings.rows])
    text += "\n## Versions\n\n" + table(("library", "version"), list(findings.versions.items()))
    if findings.absent:
        text += "\nNot run:\n\n" + table(("library", "reason"), list(findings.absent.items()))
    return text + "\n" + RERUN


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help="the folder that posenc vectors all wrote")
    parser.add_argument("--out", type=Path, help=f"the page to write, such as {PAGE.name}")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=list(LIBRARIES))
    options = parser.parse_args(arguments)
    findings = results(options.vectors, tuple(options.libraries))
    for row in findings.rows:
        print(" | ".join(cell for cell in row.cells if cell))
    for library, reason in findings.absent.items():
        print(f"{library}: not run: {reason}")
    puzzles = [row for row in findings.rows if not row.has_reason]
    for row in puzzles:
        print(f"no reason that holds: {row.library}, {row.port.family}, {row.port.api}: {row.verdict}")
    if options.out:
        options.out.write_text(page(findings), encoding="utf-8")
    return int(bool(puzzles))


if __name__ == "__main__":
    sys.exit(main())
