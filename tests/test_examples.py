"""Every example runs, in a process of its own, and leaves what it says it leaves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import posenc

HOME = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((HOME / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_leaves_its_pictures(example: Path, tmp_path: Path) -> None:
    # The package under test, also where it is not installed and was found by a relative path.
    searched = [str(Path(posenc.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, str(example), "--quick", "--out", str(tmp_path / "out")],
        cwd=tmp_path,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(filter(None, searched))},
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    pictures = [
        Path(line.removeprefix("Picture: ")) for line in ran.stdout.splitlines() if line.startswith("Picture: ")
    ]
    assert all(picture.parent == tmp_path / "out" and picture.stat().st_size > 1000 for picture in pictures)
    assert bool(pictures) == ("plots" in example.read_text(encoding="utf-8")), "it draws, and says where"


def test_the_list_of_examples_is_whole() -> None:
    listed = (HOME / "examples" / "README.md").read_text(encoding="utf-8")
    assert EXAMPLES
    assert {path.name for path in EXAMPLES} == set(re.findall(r"\]\((\w+\.py)\)", listed))
