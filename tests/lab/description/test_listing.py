"""What `posenc list` and a misspelt name say without PyTorch, held to what the library says with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import write_listing

import posenc
from posenc import catalogue, coordinate_maps, schedules, spelling
from posenc.lab.description import describe, listing

QUICK = [
    "list",
    "list rotary",
    "list yarn",
    "list --axes 2 --door bias",
    "completion bash",
    "",
    "list --json",
    "show rotari",
    "compare --encodings rotray none",
    "order alibbi",
    "--help",
]


def test_what_is_kept_is_what_there_is() -> None:
    assert listing.KEPT.read_text(encoding="utf-8") == write_listing.text(), f"run {write_listing.COMMAND}"
    assert listing.overview() == json.loads(json.dumps(describe.overview()))
    assert listing.card("rotary") == json.loads(json.dumps(describe.card("rotary"))) | {"also": []}


def test_other_code_makes_another_overview(tmp_path: Path, monkeypatch) -> None:
    home = tmp_path / "posenc"
    (home / "encodings").mkdir(parents=True)
    (home / "encodings" / "mine.py").write_text("a = 1")
    monkeypatch.setattr(listing, "__file__", str(home / "lab" / "description" / "listing.py"))
    monkeypatch.setattr(listing, "MADE_FROM", ("encodings",))
    first = listing.digest()
    (home / "encodings" / "mine.py").write_text("a = 2")
    second = listing.digest()
    (home / "encodings" / "other.py").write_text("")
    assert len({first, second, listing.digest()}) == 3
    monkeypatch.setattr(describe, "overview", lambda: {"made": "anew"})
    assert listing.read() is None and listing.overview() == {"made": "anew"}


@pytest.mark.parametrize("command", QUICK)
def test_it_takes_no_torch(command: str) -> None:
    code = (
        "import sys\nfrom posenc.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    path = {**os.environ, "PYTHONPATH": str(Path(posenc.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", code, *command.split()], env=path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("registry", [catalogue.ENCODINGS, schedules.SCHEDULES, coordinate_maps.COORDINATE_MAPS])
def test_other_names_are_those_that_classes_have(registry) -> None:
    called = {other: name for name, cls in registry.items() for other in getattr(cls, "also_called", ())}
    assert spelling.called_in(registry.home) == called | {name: name for name in registry}


@pytest.mark.parametrize(
    "spec",
    [
        "rotari",
        "rotary + alibbi",
        "on(rotray, heads=(0,))",
        "none, rotray",
        "ROPE2(base=3)",
        "fox_",
        "shaw + linear_bais",
    ],
)
def test_a_misspelt_name_is_told_as_the_catalogue_tells_it(spec: str) -> None:
    with pytest.raises(ValueError, match="no encoding named") as told:
        spelling.check(spec)
    with pytest.raises(ValueError, match="no encoding named") as by_catalogue:
        for part in spec.split(", ") if "(" not in spec else [spec]:
            catalogue.parse(part)
    assert str(told.value) == str(by_catalogue.value)


@pytest.mark.parametrize(
    "spec",
    ["rotary", "rotary(schedule=yarm())", "mine.py:Mine", "on(alibi, heads=(0,)) + none", "1 +", "rerope(rotary)"],
)
def test_what_else_is_wrong_is_left_to_the_catalogue(spec: str) -> None:
    spelling.check(spec)
