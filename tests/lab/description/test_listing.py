"""The cached listing of `posenc list` and its suggestions, against those that need PyTorch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import posenc
from posenc import catalogue, coordinate_maps, schedules
from posenc.lab.description import describe, listing
from posenc.specs import spelling

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


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache with the overview of this code, for these tests and their processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSENC_CACHE", str(folder := tmp_path_factory.mktemp("cache") / "deep"))
        listing.load_overview()
        yield folder


def test_what_is_kept_is_what_there_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.loads(json.dumps(describe.build_overview()))
    monkeypatch.setattr(describe, "build_overview", None)
    assert listing.load_overview() == expected and [file.name for file in cache.iterdir()] == [
        listing.cache_file().name
    ]
    assert listing.card("rotary") == json.loads(json.dumps(describe.encoding_card("rotary"))) | {"also": []}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"", lambda data: data.replace(b"NoPE", b"NoPF")]
)
def test_what_is_damaged_is_made_anew(damage: Callable, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = listing.cache_file()
    whole = path.read_bytes()
    monkeypatch.setattr(describe, "build_overview", lambda: json.loads(whole.partition(b"\n")[2]))
    path.write_bytes(damage(whole))
    assert listing.read_cache(path) is None and listing.load_overview()["groups"]
    assert path.read_bytes() == whole


def overview_stub(number: int, **changes: Any) -> dict[str, Any]:
    return {"made": number, "encodings": [{"name": "one"} | changes]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one encoding, with an empty cache."""
    home = tmp_path / "posenc"
    (home / "encodings").mkdir(parents=True)
    (home / "encodings" / "mine.py").write_text("a = 1")
    monkeypatch.setattr(listing, "__file__", str(home / "lab" / "description" / "listing.py"))
    monkeypatch.setattr(listing, "MADE_FROM", ("encodings", "nowhere.py"))
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "cache"))
    return home


def test_other_code_and_another_version_make_another_overview(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = listing.code_digest()
    (home / "encodings" / "mine.py").write_text("a = 2")
    second = listing.code_digest()
    (home / "encodings" / "other.py").write_text("")
    third = listing.code_digest()
    monkeypatch.setattr(listing, "__version__", "9.9")
    assert len({first, second, third, listing.code_digest()}) == 4
    for number in range(listing.MOST_CACHED + 3):
        (home / "encodings" / "mine.py").write_text(f"b = {number}")
        monkeypatch.setattr(describe, "build_overview", partial(overview_stub, number))
        assert listing.load_overview()["made"] == number
    files = list((home.parent / "cache").iterdir())
    assert len(files) == listing.MOST_CACHED and listing.cache_file() in files


def test_where_nothing_can_be_kept_it_is_made_each_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "build_overview", partial(overview_stub, 1, problem="no such package"))
    assert listing.load_overview()["made"] == 1 and not (home.parent / "cache").exists()
    monkeypatch.setattr(describe, "build_overview", partial(overview_stub, 2))
    monkeypatch.setenv("POSENC_CACHE", str(home / "encodings" / "mine.py"))
    assert listing.load_overview()["made"] == 2
    for name in ("POSENC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(listing.Path, "home", lambda: Path("~no-such-user").expanduser())
    assert listing.cache_file() is None and listing.load_overview()["made"] == 2


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
    aliases = {alias: name for name, cls in registry.items() for alias in getattr(cls, "also_called", ())}
    assert spelling.aliases_in(registry.home) == aliases | {name: name for name in registry}


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
    with pytest.raises(ValueError, match="no encoding named") as error:
        spelling.check(spec)
    with pytest.raises(ValueError, match="no encoding named") as by_catalogue:
        for part in spec.split(", ") if "(" not in spec else [spec]:
            catalogue.parse(part)
    assert str(error.value) == str(by_catalogue.value)


@pytest.mark.parametrize(
    "spec",
    ["rotary", "rotary(schedule=yarm())", "mine.py:Mine", "on(alibi, heads=(0,)) + none", "1 +", "rerope(rotary)"],
)
def test_what_else_is_wrong_is_left_to_the_catalogue(spec: str) -> None:
    spelling.check(spec)
