"""The defects of other libraries that a guide shows in a few lines are there, in the releases that it names."""

import importlib.metadata
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "known-defects.md"
SHOWN = re.findall(r"^```py\n# (\S+) (\S+)\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_there_are_lines_to_run() -> None:
    assert len(SHOWN) > 5


@pytest.mark.parametrize(("library", "release", "code"), SHOWN, ids=[f"{one[0]}-{at}" for at, one in enumerate(SHOWN)])
def test_what_the_guide_shows_happens_in_the_release_that_it_names(library: str, release: str, code: str) -> None:
    try:
        installed = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    if installed != release:
        pytest.skip(f"the guide speaks of {library} {release}, and {installed} is installed")
    exec(compile(code, f"{GUIDE.name}, {library}", "exec"), {})
