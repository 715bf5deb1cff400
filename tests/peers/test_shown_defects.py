"""Defects of other libraries that a guide shows occur in the releases that it names."""

import importlib.metadata
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "known-defects.md"
EXAMPLES = re.findall(r"^```py\n# (\S+) (\S+)\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_there_are_lines_to_run() -> None:
    assert len(EXAMPLES) > 5


@pytest.mark.parametrize(("library", "release", "code"), EXAMPLES, ids=[f"{x[0]}-{n}" for n, x in enumerate(EXAMPLES)])
def test_what_the_guide_shows_happens_in_the_release_that_it_names(library: str, release: str, code: str) -> None:
    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    if version != release:
        pytest.skip(f"the guide describes {library} {release}, and {version} is installed")
    exec(compile(code, f"{GUIDE.name}, {library}", "exec"), {})
