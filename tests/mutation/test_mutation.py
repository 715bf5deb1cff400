"""The mutation tool: which breaks it makes, and that it tells a caught break from a survivor."""

import ast
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutation import mutate
from mutation.breaks import Mutant, find_mutants, sample

TOOL = Path(mutate.__file__)

SOURCE = '''"""An area."""

KEPT = {}


def area(width: float, height: float = 1.0, *, border: float = 0.0) -> float:
    """The area within a border."""
    if width < 0:
        raise ValueError(f"width must be {0} or more")
    key = (width, height, border)
    if key not in KEPT:
        KEPT[key] = inner(width, border=border) * inner(height, border=border)
    return KEPT[key]


def inner(length: float, border: float) -> float:
    return length - 2 * border


def angle(x):
    return x.sin().to(x.dtype)[: x.n]
'''


def edits(source: str, function: str, kind: str) -> set[str]:
    return {m.description for m in find_mutants("area.py", source) if m.function == function and m.kind == kind}


def test_a_break_of_each_kind_is_made() -> None:
    assert edits(SOURCE, "area", "comparison") == {
        "width < 0 becomes width <= 0",
        "key not in KEPT becomes key in KEPT",
    }
    assert edits(SOURCE, "area", "branch") == {
        "never: if width < 0",
        "never: if key not in KEPT",
        "always: if key not in KEPT",
    }
    assert edits(SOURCE, "area", "part") == {
        f"without {part} in (width, height, border)" for part in ("width", "height", "border")
    }
    assert edits(SOURCE, "area", "keyword") == {"inner(...) without border="}
    assert edits(SOURCE, "inner", "operator") == {
        "length - 2 * border becomes length + 2 * border",
        "2 * border becomes 2 / border",
    }
    assert edits(SOURCE, "inner", "order") == {"length - 2 * border becomes 2 * border - length"}
    assert edits(SOURCE, "angle", "name") == {"x.sin() becomes x.cos()"}
    assert edits(SOURCE, "angle", "call") == {"without .to(...) after x.sin()"}
    assert edits(SOURCE, "angle", "bound") == {"x.n becomes x.n + 1"}


def test_more_kinds_of_breaks() -> None:
    source = "def f(a, b, n):\n    n = n + 1\n    b.add_(a)\n    return f(a, b) if a and not b else -a @ b\n"
    assert edits(source, "f", "statement") == {"without the statement n = n + 1", "without the statement b.add_(a)"}
    assert edits(source, "f", "arguments") == {"f(a, b) with arguments 1 and 2 swapped"}
    assert "a and (not b) becomes a or not b" in edits(source, "f", "condition")
    assert "without a in a and (not b)" in edits(source, "f", "condition")
    assert edits(source, "f", "sign") == {"not b becomes b", "-a becomes a"}
    assert edits(source, "f", "order") == {"-a @ b becomes b @ -a"}
    assert edits("X = (1, True)\n", "", "truth") == {"True becomes False"}


def test_every_break_is_one_change_that_compiles() -> None:
    breaks = find_mutants("area.py", SOURCE)
    sources = {mutant.apply_to(SOURCE) for mutant in breaks}
    assert SOURCE not in sources
    assert len(sources) == len(breaks) == len({mutant.name for mutant in breaks})
    for text in sources:
        assert ast.get_docstring(ast.parse(text)) == "An area."


def test_what_is_said_to_people_and_to_type_checkers_is_left_alone() -> None:
    text = 'WORDS = ("a", "b")\n\n\ndef f(x: "int | 3" = None):\n    """1 + 1"""\n    raise ValueError(f"{x + 1}", 2)\n'
    assert not find_mutants("a.py", text)


def test_letters_of_several_bytes_do_not_move_the_place_of_a_break() -> None:
    source = "def f(a, b):\n    return 'äöü', a - b\n"
    (mutant,) = [m for m in find_mutants("a.py", source) if m.kind == "order"]
    assert mutant.apply_to(source) == "def f(a, b):\n    return 'äöü', ((b) - (a))\n"


def test_a_sample_has_every_function_first_and_varies_the_kinds() -> None:
    breaks = find_mutants("area.py", SOURCE)
    functions = {m.function for m in breaks}
    first = sample(breaks, 1)
    assert sorted(m.function for m in first) == sorted(functions)
    twice = sample(breaks, 2)
    assert twice[: len(first)] == first
    assert len({m.kind for m in twice if m.function == "area"}) == 2
    assert sample(breaks, 1) == first != sample(breaks, 1, seed=3)


def test_a_name_tells_equal_breaks_apart_and_forgets_lines() -> None:
    source = "def f(a):\n    g(a - 1)\n    g(a - 1)\n"
    names = [m.name for m in find_mutants("a.py", source) if m.kind == "operator"]
    assert names == ["a.py f: a - 1 becomes a + 1", "a.py f: a - 1 becomes a + 1 (number 2)"]
    assert names == [m.name for m in find_mutants("a.py", "\n\n" + source) if m.kind == "operator"]


def project(folder: Path) -> Path:
    """Write a package with passing tests, one that fails without a break, and a function without a test."""
    (folder / "src/planted").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text('[tool.pytest]\naddopts = ["--import-mode=importlib"]\n')
    (folder / "src/planted/ring.py").write_text(
        "def around(place, size):\n    return place % size\n\n\n"
        "def count(n):\n    while n > 0:\n        n = n - 1\n    return n\n\n\n"
        "def untested(a, b):\n    return a - b\n"
    )
    (folder / "tests/test_ring.py").write_text(
        "from planted.ring import around, count\n\n\n"
        "def test_places_come_round():\n    assert around(7, 4) == 3\n\n\n"
        "def test_down():\n    assert count(3) == 0\n\n\n"
        "def test_that_fails_by_itself():\n    assert around(1, 4) == 2\n"
    )
    return folder


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = project(tmp_path_factory.mktemp("planted"))
    return folder, run_mutate(folder)


def run_mutate(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(TOOL),
        "src/planted/ring.py",
        "--root",
        str(folder),
        "--each",
        "9",
        "--patience",
        "4",
        *options,
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=dict(os.environ), timeout=280)


@pytest.mark.slow
def test_caught_breaks_and_survivors_are_told_apart(first) -> None:
    folder, result = first
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    assert "fails without any break, and is left out: tests/test_ring.py::test_that_fails_by_itself" in result.stderr
    assert "survived   src/planted/ring.py:12 untested: a - b becomes a + b" in lines
    assert "survived   src/planted/ring.py:12 untested: a - b becomes b - a" in lines
    assert not [line for line in lines if " around:" in line]
    # n > 0 becomes n >= 0 gives -1; without n = n - 1 the loop is endless, and the limit of processor time ends it
    assert not [line for line in lines if " count:" in line]
    assert "(they crash, or do not end)" in (folder / "build/mutation/verdicts.jsonl").read_text()
    assert "%" in (folder / "src/planted/ring.py").read_text()


@pytest.mark.slow
def test_a_second_run_goes_on_where_the_first_ended(first) -> None:
    folder, _ = first
    verdicts = (folder / "build/mutation/verdicts.jsonl").read_text()
    second = run_mutate(folder)
    assert second.stdout == first[1].stdout
    assert (folder / "build/mutation/verdicts.jsonl").read_text() == verdicts


@pytest.mark.slow
def test_a_wide_run_tries_what_survived_with_every_test_that_enters_it(first) -> None:
    """Slow: every break runs pytest once, and the tool runs only by hand."""
    folder, _ = first
    (folder / "tests/test_elsewhere.py").write_text(
        "from planted.ring import untested\n\n\ndef test_difference():\n    assert untested(3, 1) == 2\n"
    )
    (folder / "tests/test_apart.py").write_text("def test_of_something_else():\n    pass\n")
    result = run_mutate(folder, "--wide")
    assert result.returncode == 0, result.stdout
    assert "2 by others, 0 survived" in result.stdout


def test_survivors_that_are_explained_are_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "explained.txt"
    path.write_text("# why\nsrc/a.py f: a - b becomes b - a\n    both are 0,\n    always\n")
    reasons = mutate.read_explanations(path)
    assert reasons == {"src/a.py f: a - b becomes b - a": "both are 0, always"}
    verdicts = [{"name": "src/a.py f: a - b becomes b - a", "killer": None, "tier": "", "line": 3}]
    assert mutate.table(verdicts, reasons, show_explained=False) == (
        "1 break: 0 caught by the nearest tests, 0 by the contract, 0 by others, 1 survived, 1 of them explained"
    )
    assert "both are 0" in mutate.table(verdicts, reasons, show_explained=True)


@pytest.mark.slow
def test_every_explanation_has_a_reason_and_a_break_that_still_exists() -> None:
    reasons = mutate.read_explanations()
    assert all(reasons.values())
    files = {name.split(" ")[0] for name in reasons}
    names = {m.name for file in files for m in find_mutants(file, (mutate.ROOT / file).read_text(encoding="utf-8"))}
    assert set(reasons) <= names


@pytest.mark.slow
def test_the_nearest_tests_are_its_own_or_those_that_import_little_else_or_those_of_its_room() -> None:
    assert mutate.nearest(mutate.ROOT, "src/posenc/encodings/wrappers/rerope.py") == [
        "tests/encoding/test_distance_maps.py"
    ]
    assert mutate.nearest(mutate.ROOT, "src/posenc/tokens/positions.py") == ["tests/tokens/test_positions.py"]
    kernels = mutate.nearest(mutate.ROOT, "src/posenc/kernels/__init__.py")
    assert len(kernels) == mutate.MAX_IMPORTERS and kernels == mutate.nearest(
        mutate.ROOT, "src/posenc/kernels/reference.py"
    )
    assert mutate.nearest(mutate.ROOT, "src/posenc/lab/tasks/sort.py") == ["tests/lab/tasks/test_tasks.py"]
    assert mutate.nearest(mutate.ROOT, "src/posenc/foreign/gguf.py") == ["tests/foreign/test_foreign_gguf.py"]
    assert mutate.nearest(mutate.ROOT, "src/posenc/foreign/files.py") == ["tests/foreign/test_foreign.py"]


def test_what_changed_is_read_from_git(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 2\n")
    git("add", ".")
    git("commit", "-m", "one")
    git("commit", "--allow-empty", "-m", "two")
    (tmp_path / "src/a.py").write_text("def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 3\n")
    sample = mutate.select_mutants(tmp_path, [], "main", 9, 0)
    assert {mutant.function for mutant in sample} == {"g"}


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no Python file src/b\.py in .*; name files such as"):
        mutate.select_mutants(tmp_path, ["src/b.py"], "main", 1, 0)


def test_only_the_quickest_tests_run_within_the_seconds_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (mutant,) = [m for m in find_mutants("a.py", "def f(a):\n    return a - 1\n") if m.kind == "operator"]
    bench = mutate.Workbench(Path("nowhere"), Path("nowhere"), patience=20, seconds=4)
    calls: list[object] = []
    trace = mutate.Trace({"slow": 3.0, "quick": 1.0, "medium": 2.0}, {})
    monkeypatch.setattr(bench, "trace", lambda tests: trace)
    monkeypatch.setattr(bench, "break_file", lambda mutant: contextlib.nullcontext())
    monkeypatch.setattr(bench, "run", lambda tests, selection, limit: calls.extend([*selection, limit]))
    tests = mutate.Tests("nearest", "", (), lambda item: True, "")
    assert bench.killer(mutant, tests) == "nearest tests (they crash, or do not end)"
    assert calls == ["quick", "medium", 35]


def test_a_break_in_a_kept_result_is_looked_for_by_all_tests() -> None:
    source = "@functools.cache\ndef f(a, b):\n    return a - b\n"
    (mutant, _) = [m for m in find_mutants("a.py", source) if m.kind in ("operator", "order")]
    assert isinstance(mutant, Mutant) and mutant.is_cached and mutant.first_line == 1
    trace = mutate.Trace({"slow": 2.0, "quick": 1.0}, {"a.py:1": ["slow"]})
    assert trace.tests_for(mutant) == ["quick", "slow"]
    assert trace.tests_for(mutant._replace(is_cached=False)) == ["slow"]
