"""Plugins are found by entry points, shadow no built-in name, and fail in isolation."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import posenc
from posenc import Shape, catalogue, schedules, testing
from posenc.cli import main
from posenc.lab import tasks
from posenc.specs import plugins

ROOT = Path(__file__).parents[2]
SHAPE = Shape.of(dim=12, heads=3, max_len=16)

ENCODING = """
from posenc import ALiBi

class Mine(ALiBi):
    '''A bias of another package, for a test.

    Source: a test.
    '''
"""
SCHEDULE = """
from dataclasses import dataclass
from posenc.schedules import Schedule

@dataclass(frozen=True)
class Halved(Schedule):
    '''Half of every frequency.

    Source: a test.
    '''

    factor: float = 2.0

    def __call__(self, frequencies, *, base, width, horizon=None):
        return frequencies / self.factor, 1.0
"""
TASK = """
from posenc.lab.tasks import TASKS

class Again(TASKS["copy"]):
    '''Copy, under the name of another package.

    Source: a test.
    '''
"""


ODD = """
WORD = "word"
def leave(): raise SystemExit
class Own(BaseException):
    def __str__(self): raise ValueError
class Meta(type):
    def __getattr__(self, name): raise Own
class Mute(metaclass=Meta):
    def __repr__(self): raise Own
MUTE = Mute()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a package's module and metadata, as an installer would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.plugins_in.cache_clear()

    def lay(package: str, group: str, points: str, module: str = "", source: str = "") -> None:
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
        if module:
            (tmp_path / f"{module}.py").write_text(source)
            monkeypatch.delitem(sys.modules, module, raising=False)
        plugins.plugins_in.cache_clear()

    return lay


@pytest.fixture(autouse=True)
def clear_caches():
    yield
    plugins.plugins_in.cache_clear()


def test_an_encoding_of_a_package_is_built_by_its_name(install) -> None:
    install("a-package", "posenc.encodings", "far_off = far_off_module:Mine", "far_off_module", ENCODING)
    encoding = catalogue.build("rotary(base=50) + far_off", SHAPE)
    assert repr(encoding) == "rotary(base=50) + far_off"
    assert type(catalogue.build("far_off", SHAPE)).__module__ == "far_off_module"
    assert "far_off" not in catalogue.names()  # it lists only built-in names


def test_a_schedule_and_a_task_of_a_package_go_where_those_that_ship_go(install) -> None:
    install("of-schedules", "posenc.schedules", "halved = halved_module:Halved", "halved_module", SCHEDULE)
    install("of-tasks", "posenc.tasks", "again = again_module:Again", "again_module", TASK)
    assert repr(catalogue.build("rotary(schedule=halved(factor=4))", SHAPE)) == "rotary(schedule=halved(factor=4))"
    frequencies = torch.ones(2, dtype=torch.float64)
    schedule = schedules.schedule_of("halved")
    assert schedule is not None and schedule(frequencies, base=10.0, width=4)[0].tolist() == [0.5, 0.5]
    assert repr(tasks.task_of("again(symbols=5)")) == "again(symbols=5)"


def test_a_name_that_posenc_has_stays_its_own_and_the_list_says_so(install, capsys) -> None:
    install("a-thief", "posenc.encodings", "rotary = thief_module:Mine", "thief_module", ENCODING)
    assert catalogue.find("rotary") is posenc.Rotary
    assert main(["list"]) == 0
    assert "encoding of a-thief 1.0; not used: posenc has encoding rotary itself" in capsys.readouterr().out
    assert "thief_module" not in sys.modules


def test_a_broken_plugin_is_named_and_breaks_no_other(install, capsys) -> None:
    install("a-wreck", "posenc.encodings", "wreck = wreck_module:Mine", "wreck_module", "import no_such_module")
    install("a-package", "posenc.encodings", "far_off = far_off_module:Mine", "far_off_module", ENCODING)
    with pytest.raises(
        ValueError,
        match=r"the encoding 'wreck' of the package 'a-wreck 1\.0' cannot be imported: ModuleNotFoundError: .*"
        r"'no_such_module'; mend or uninstall that package",
    ):
        catalogue.find("wreck")
    assert catalogue.build("far_off", SHAPE).spec_name == "far_off"
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    assert "wreck                encoding of a-wreck 1.0" in output
    assert "far_off              encoding of a-package 1.0" in output
    assert main(["list", "wreck"]) == 2
    assert "cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("points", "name", "message"),
    [
        ("odd = odd_module:WORD", "odd", r"'odd' .* must be a subclass of posenc\.Encoding; 'odd_module:WORD' is"),
        ("odd = odd_module:Gone", "odd", r"cannot be imported: AttributeError"),
        ("odd = odd_module:leave", "odd", r"must be a subclass of posenc\.Encoding; 'odd_module:leave' is a function"),
        ("odd = odd_module:MUTE", "odd", r"must be a subclass of posenc\.Encoding; 'odd_module:MUTE' is a Mute"),
        ("odd = odd_module:Mute.of", "odd", r"cannot be imported: Own; mend or uninstall that package"),
        ("odd = not a value!!", "odd", r"its plug-in 'odd' is 'not a value!!', which is no module:Class; mend or"),
        ("odd = :", "odd", r"its plug-in 'odd' is ':', which is no module:Class"),
        ("od-d = odd_module:WORD", "od-d", r"names a plug-in 'od-d', which no spec can say; .* letters, digits and _"),
    ],
)
def test_what_is_no_encoding_is_refused_with_its_package(install, points: str, name: str, message: str) -> None:
    install("an-odd-one", "posenc.encodings", points, "odd_module", ODD)
    with pytest.raises(ValueError, match=message) as error:
        catalogue.find(name)
    assert "an-odd-one 1.0" in str(error.value)


def test_two_packages_of_one_name_are_both_named(install) -> None:
    install("first", "posenc.encodings", "far_off = far_off_module:Mine", "far_off_module", ENCODING)
    install("second", "posenc.encodings", "far_off = other_module:Mine", "other_module", ENCODING)
    with pytest.raises(ValueError, match=r"the name of two plug-ins, of first 1\.0 and second 1\.0; uninstall one"):
        catalogue.find("far_off")


@pytest.mark.parametrize("does", ["raise type('Own', (Exception,), {})('x')", "{}['x']", "1 + 'x'", "open('x')"])
def test_what_a_constructor_of_another_raises_is_one_sentence(does: str, install, capsys) -> None:
    options = f"\n    def __init__(self):\n        {does}\n"
    install("a-wreck", "posenc.encodings", "wreck = wreck_module:Mine", "wreck_module", ENCODING + options)
    install("b-wreck", "posenc.schedules", "sunk = sunk_module:Halved", "sunk_module", SCHEDULE + options)
    for spec, says in ("wreck", "wreck: Mine"), ("rotary(schedule=sunk)", "rotary: Halved"):
        assert main(["show", spec]) == 2
        words = rf"^posenc: {says} fails, in line \d+ of '.*_module\.py': (Own|Key|Type|FileNotFound)\w*: "
        assert re.match(words, capsys.readouterr().err)


def test_a_misspelt_plugin_is_told(install, capsys) -> None:
    install("a-package", "posenc.encodings", "far_off = far_off_module:Mine", "far_off_module", ENCODING)
    with pytest.raises(ValueError, match="did you mean 'far_off'"):
        catalogue.find("far_of")
    assert main(["show", "far_of"]) == 2
    assert "did you mean 'far_off'" in capsys.readouterr().err


def test_other_groups_are_not_read(install) -> None:
    install("a-package", "posenc.published", "claim = far_off_module:Mine", "far_off_module", ENCODING)
    assert dict(plugins.plugins_for("posenc/lab/published")) == {}


def test_the_example_package_keeps_the_contract_once_it_is_installed(tmp_path: Path, monkeypatch) -> None:
    """The example's wheel is built and unpacked into a folder, as an installer does."""
    folder = tmp_path / "dist"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    ran = subprocess.run(command, cwd=ROOT / "examples" / "plugin", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "target")
    monkeypatch.syspath_prepend(str(tmp_path / "target"))
    plugins.plugins_in.cache_clear()
    (plugin,) = plugins.plugins_in("posenc.encodings").values()
    assert (plugin.name, plugin.package) == ("slow_fade", "posenc-slow-fade 1.0")
    promises = ["says_what_the_paper_says", "a_cache_changes_nothing", "the_spec_round_trips", "has_a_source"]
    verdicts = testing.check("slow_fade(start=3)", promises)
    assert [verdict.word for verdict in verdicts] == ["kept"] * len(promises), testing.describe(verdicts)
    with pytest.raises(ValueError, match=r"start must be a finite number above 0 \(positions\), got -1"):
        catalogue.build("slow_fade(start=-1)", SHAPE)
