"""What type checkers and editors know of posenc: every public name with its signature, and none that is not there."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import write_stub

import posenc
from posenc import catalogue

USE = """
import posenc
from posenc import ALiBi, masks
from typing_extensions import reveal_type

reveal_type(posenc.Rotary(64))
reveal_type(ALiBi(8).heads)
reveal_type(masks.causal())
posenc.NoSuchName
posenc.Rotary("wide")
posenc.Rotary(64, layuot="half")
"""

EXPECTED_MESSAGES = [
    "6: Revealed type: `Rotary`",
    "7: Revealed type: `int`",
    "8: Revealed type: `Mask`",
    "9: Module `posenc` has no member `NoSuchName`",
    '10: Argument to `Rotary.__init__` is incorrect: Expected `int`, found `Literal["wide"]`',
    "11: Argument `layuot` does not match any known parameter of `Rotary.__init__`",
]


def test_the_stub_names_what_there_is() -> None:
    assert write_stub.STUB.read_text(encoding="utf-8") == write_stub.stub(), f"run {write_stub.COMMAND}"


def test_every_encoding_is_a_public_name() -> None:
    assert set(catalogue.ENCODINGS.class_names) < set(posenc.__all__)
    names: dict[str, object] = {}
    exec("from posenc import *", names)
    assert set(posenc.__all__) <= set(names)


@pytest.mark.skipif(importlib.util.find_spec("ty") is None, reason="ty, the type checker, is not installed")
def test_a_type_checker_knows_encodings_and_misses_what_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    ty = [sys.executable, "-m", "ty", "check", "--no-progress", "--output-format", "concise"]
    where = ["--python", sys.prefix, "--extra-search-path", str(Path(posenc.__file__).parents[1])]
    ran = subprocess.run([*ty, *where, "use.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    lines = [line.removeprefix("use.py:").partition(" ") for line in ran.stdout.splitlines() if line.startswith("use")]
    assert [f"{place.split(':')[0]}: {output.partition(' ')[2]}" for place, _, output in lines] == EXPECTED_MESSAGES
