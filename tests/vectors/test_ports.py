"""The page of other libraries says what their ports give on the test vectors, where they are installed."""

import importlib.metadata
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import port_libraries
import ports
from posenc import vectors


def cells(text: str, heading: str) -> list[tuple[str, ...]]:
    """Return the rows of the table under a heading of the page."""
    _, _, rest = text.partition(f"\n## {heading}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in lines[2:]]


PAGE = ports.PAGE.read_text(encoding="utf-8")
VERSIONS = dict(cells(PAGE, "Versions"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    vectors.write(((name, vectors.vectors(spec)) for name, spec in vectors.FAMILIES.items()), path)
    return path


@pytest.mark.parametrize("library", port_libraries.LIBRARIES)
def test_the_ports_of_a_library_give_what_the_page_says(folder: Path, library: str) -> None:
    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    if version != VERSIONS.get(library):
        pytest.skip(f"the page describes {library} {VERSIONS.get(library)}, and {version} is installed")
    findings = ports.results(folder, (library,))
    assert not findings.absent and all(row.has_reason for row in findings.rows)
    # Differences depend on the machine; the cases and the result do not.
    expected = [row[:5] for row in cells(PAGE, "Every port") if row[0] == library]
    assert [row.cells[:5] for row in findings.rows] == expected
    reasons = [(row.library, row.port.family, row.port.reason) for row in findings.rows if row.failures]
    assert reasons == [(row[0], row[1], row[4]) for row in cells(PAGE, "Why they fail") if row[0] == library]


def test_a_port_of_another_layout_fails_without_a_reason(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("x_transformers")
    swapped_folder = shutil.copytree(folder, tmp_path / "other")
    with np.load(folder / "rotary-half.npz") as arrays:
        np.savez(swapped_folder / "rotary-interleaved.npz", **arrays)
    assert ports.main(["--vectors", str(swapped_folder), "--libraries", "x-transformers"]) == 1
    assert ports.main(["--vectors", str(folder), "--libraries", "x-transformers"]) == 0
