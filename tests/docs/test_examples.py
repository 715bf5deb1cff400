"""Every example runs as one that is called by its name, and leaves what it says it leaves."""

import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((HOME / "examples").glob("*.py"))


LONG = ("ablation", "attention_maps", "extrapolation", "mini_gpt")


@pytest.mark.parametrize(
    "example", [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONG), id=path.stem) for path in EXAMPLES]
)
def test_an_example_runs_and_leaves_its_pictures(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if example.stem == "tune_with_peft":
        pytest.importorskip("peft")
        # peft asks transformers for a name that is on its way out.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    # In this process: to load torch and matplotlib once more takes longer than most examples.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example), "--quick", "--out", str(tmp_path / "out")])
    runpy.run_path(str(example), run_name="__main__")
    output = capsys.readouterr().out
    assert output.strip()
    pictures = [Path(line.removeprefix("Picture: ")) for line in output.splitlines() if line.startswith("Picture: ")]
    assert all(picture.parent == tmp_path / "out" and picture.stat().st_size > 1000 for picture in pictures)
    assert bool(pictures) == ("figures" in example.read_text(encoding="utf-8")), "it draws, and says where"


def test_the_list_of_examples_is_whole() -> None:
    names = (HOME / "examples" / "README.md").read_text(encoding="utf-8")
    assert EXAMPLES
    assert {path.name for path in EXAMPLES} == set(re.findall(r"\]\((\w+\.py)\)", names))
