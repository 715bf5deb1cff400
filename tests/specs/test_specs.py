"""Specs have one syntax, and a spec read from a file never runs code."""

import ast
from pathlib import Path

import pytest

from posenc import Shape, build
from posenc.catalogue import parse
from posenc.checkpoints.vocabulary.reading import names_no_code
from posenc.coordinate_maps import map_of
from posenc.foreign import CannotRead
from posenc.lab.experiments.experiment import Experiment
from posenc.schedules import schedule_of
from posenc.specs.syntax import code_files, path_literal, quote_paths, split, tree_of

LEAVES_A_TRACE = "from pathlib import Path\n\nPath({!r}).touch()\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write mine.py, and return the path of the file that it creates when run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LEAVES_A_TRACE.format(str(tmp_path / "ran")))
    return tmp_path / "ran"


# The same path in every Python string syntax.
SCHEDULES_OF_ONES_OWN = [
    "mine.py:Mine(factor=2)",
    "'mine.py:Mine'(factor=2)",
    "resonance(inner=mine.py:Mine(factor=2))",
    "clipped(pairs=2, inner='mine.py:Mine'(factor=2))",
    r"'\x6dine\x2epy:Mine'(factor=2)",
    "'mine.p' 'y:Mine'(factor=2)",
    "'''mine.py:Mine'''(factor=2)",
]
ENCODINGS_OF_ONES_OWN = [
    "mine.py:Mine",
    "rotary + 'mine.py:Mine'(step=2)",
    "on(mine.py:Mine, heads=0)",
    r"'mine\x2epy:Mine'",
    r"rerope('mine\N{FULL STOP}py:Mine')",
    "alibi + 'mine.p' 'y:Mine'",
    *(f"rotary(schedule={schedule})" for schedule in SCHEDULES_OF_ONES_OWN),
    # A constructor also accepts a schedule in spec syntax.
    *(f"rotary(schedule={schedule!r})" for schedule in SCHEDULES_OF_ONES_OWN),
    "rotary(schedule=\"resonance(inner='mine.py:Mine'(factor=2))\")",
    r"""rotary(schedule="'\\x6dine.py:Mine'(factor=2)")""",
]


@pytest.mark.parametrize("spec", ENCODINGS_OF_ONES_OWN)
def test_a_spec_that_was_read_runs_no_code_however_it_names_it(spec: str, ran: Path) -> None:
    assert code_files(spec) == ["mine.py"]
    with pytest.raises(
        CannotRead, match=r"it names code to run, 'mine.py:Mine', and code that a file names is run only"
    ):
        parse(spec, trusted_files=())
    with pytest.raises(
        CannotRead, match=r"it asks for code from the file 'mine.py'.*none is run that you have not named"
    ):
        Experiment.from_dict({"spec": spec, "task": "copy"})
    with pytest.raises(CannotRead, match="none is run that a checkpoint names"):
        names_no_code(spec)
    assert not ran.exists()
    with pytest.raises(ValueError, match=r"mine.py' has no (encoding|schedule) named 'Mine'"):
        Experiment.from_dict({"spec": spec, "task": "copy"}, trusted_files=["./mine.py"])
        # Words are passed to the constructor unchanged.
        build(spec, Shape.of(16, 2, 8))
    assert ran.exists()


@pytest.mark.parametrize("spec", SCHEDULES_OF_ONES_OWN)
def test_a_schedule_or_a_map_that_was_read_runs_no_code(spec: str, ran: Path) -> None:
    for read in (schedule_of, map_of):
        with pytest.raises(CannotRead, match=r"it names code to run, 'mine.py:Mine'"):
            read(spec, trusted_files=())
        with pytest.raises(CannotRead, match=r"it names code to run, 'mine.py:Mine'"):
            read(spec, trusted_files=["other.py"])
    assert not ran.exists()
    with pytest.raises(
        ValueError, match=r"mine.py' has no schedule named 'Mine'; it has: no subclass of posenc.schedules"
    ):
        schedule_of(spec, trusted_files=["mine.py"])
    assert ran.exists()


def test_what_only_looks_like_a_path_names_no_file() -> None:
    for spec in ("rotary(layout='half')", "rotary(layout='it is (no spec')", "'mine.py'", "rotary + 'a.pyc:Mine'"):
        assert code_files(spec) == []


@pytest.mark.parametrize(
    ("spec", "quotes"),
    [
        ("mine.py:Mine", "'mine.py:Mine'"),
        ("rotary(schedule=a b/mine.py:Mine(factor=2))", "rotary(schedule='a b/mine.py:Mine'(factor=2))"),
        ("rotary(base=5, schedule = mine.py:Mine(x=1))", "rotary(base=5, schedule = 'mine.py:Mine'(x=1))"),
        ("r(schedule='mine.py:Mine'(x=1))", "r(schedule='mine.py:Mine'(x=1))"),
        # Options outside parentheses are not parsed.
        ("step=3/mine.py:Mine", "'step=3/mine.py:Mine'"),
        ("rerope('step=3/mine.py:Mine')", "rerope('step=3/mine.py:Mine')"),
    ],
)
def test_a_path_may_stand_wherever_a_name_does(spec: str, quotes: str) -> None:
    assert quote_paths(spec) == quotes
    assert ast.unparse(tree_of(spec)) == ast.unparse(ast.parse(quotes, mode="eval").body)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a b/mine.py", "a b/mine.py:Mine"),
        ("a+b/mine.py", "'a+b/mine.py:Mine'"),
        ("step=3/mine.py", "'step=3/mine.py:Mine'"),
        ("1=a/mine.py", "1=a/mine.py:Mine"),
    ],
)
def test_a_path_is_printed_as_it_is_read_again_wherever_it_stands(path: str, expected: str) -> None:
    assert path_literal(f"{path}:Mine") == expected
    for spec in (expected, f"rerope({expected})", f"rotary(schedule={expected}(factor=2), base=3)"):
        assert code_files(spec) == [path]
    assert split(f"{expected}, rotary") == [expected, "rotary"]
