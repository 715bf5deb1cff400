"""What is compiled with the package: in place, into the wheel, and not at all where there is no compiler."""

import ctypes
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from posenc.foreign.code import import_file
from posenc.kernels.rotation import native
from posenc.lab.board import costs, rows, run

ROOT = Path(__file__).parents[2]
hatch_build = import_file(str(ROOT / "hatch_build.py"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / hatch_build.FOLDER
    folder.mkdir(parents=True)
    shutil.copy(ROOT / hatch_build.FOLDER / hatch_build.SOURCE, folder)
    return tmp_path


def hook(root: Path, messages: list[str]) -> SimpleNamespace:
    return SimpleNamespace(root=str(root), app=SimpleNamespace(display_warning=messages.append))


def test_the_build_and_the_loader_mean_the_same_file() -> None:
    assert native.LIBRARY.name == hatch_build.LIBRARY and native.LIBRARY.parent.parts[-4:] == hatch_build.FOLDER.parts
    patterns = (ROOT / ".gitignore").read_text().splitlines()
    assert f"/{hatch_build.FOLDER}/*.so" in patterns


@pytest.mark.skipif(not hatch_build.compilers(), reason="no C compiler here")
@pytest.mark.slow  # CI runs it in an environment made by pip
def test_a_wheel_holds_the_library_and_says_its_platform(root: Path) -> None:
    messages: list[str] = []
    data = {"artifacts": [], "force_include": {}}
    hatch_build.CustomBuildHook.initialize(hook(root, messages), "standard", data)
    library = root / hatch_build.FOLDER / hatch_build.LIBRARY
    assert not messages and data["artifacts"] == [str(hatch_build.FOLDER / hatch_build.LIBRARY)]
    assert data["pure_python"] is False and data["tag"] == hatch_build.platform_tag()
    assert data["tag"].startswith("py3-none-") and not {"-", "."} & set(data["tag"].removeprefix("py3-none-"))
    assert ctypes.CDLL(str(library)).posenc_interface() == native.INTERFACE
    # Nothing else is left behind.
    assert {file.name for file in library.parent.iterdir()} == {hatch_build.SOURCE, hatch_build.LIBRARY}


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/nowhere/cc -O1", r"/nowhere/cc -O1 cannot be started"),
        ("false", r"false failed: no message"),
        (None, r"no C compiler was found \(set CC to name one\)"),
    ],
)
def test_without_a_compiler_the_wheel_is_pure(
    root: Path, monkeypatch: pytest.MonkeyPatch, compiler: str | None, reason: str
) -> None:
    old = root / hatch_build.FOLDER / hatch_build.LIBRARY
    old.write_bytes(b"of an older build")
    if compiler is None:
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(hatch_build.shutil, "which", lambda name: None)
    else:
        monkeypatch.setenv("CC", compiler)
    messages: list[str] = []
    data = {"artifacts": [], "force_include": {}}
    hatch_build.CustomBuildHook.initialize(hook(root, messages), "standard", data)
    assert data == {"artifacts": [], "force_include": {}} and not old.exists()
    with pytest.raises(AssertionError, match=f"^posenc is installed without compiled code: {reason}"):
        raise AssertionError(*messages)


@pytest.mark.slow  # CI runs it in an environment made by pip
def test_a_wheel_brings_the_rows_of_the_board_and_an_editable_install_reads_them_in_place(root: Path) -> None:
    (root / "docs" / "board").mkdir(parents=True)
    for name in (rows.FILE, costs.FILE, "README.md"):
        (root / "docs" / "board" / name).write_text("")
    data = {"artifacts": [], "force_include": {}}
    hatch_build.CustomBuildHook.initialize(hook(root, []), "standard", data)
    files = {Path(source).name: target for source, target in data["force_include"].items()}
    assert files == {name: f"posenc/lab/board/committed/{name}" for name in (rows.FILE, costs.FILE)}
    assert run.IN_WHEEL.parts[-4:] == Path(hatch_build.BOARD_IN_WHEEL).parts and run.COMMITTED == run.IN_CHECKOUT
    editable = {"artifacts": [], "force_include": {}}
    hatch_build.CustomBuildHook.initialize(hook(root, []), "editable", editable)
    assert not editable["force_include"]


def test_what_an_index_shows_leads_to_no_file_of_the_checkout(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shutil.copy(ROOT / "README.md", tmp_path)
    metadata: dict = {}
    hatch_build.ReadmeHook.update(SimpleNamespace(root=str(tmp_path)), metadata)
    readme = metadata["readme"]["text"]
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert re.search(r"\]\((?!https?:)", text) and not re.search(r"\]\((?!https?:)", readme)
    # The words stay.
    assert "ARCHITECTURE.md" in readme and "files from elsewhere" in readme
    assert hatch_build.for_an_index("[a paper](https://a.paper)") == "[a paper](https://a.paper)"


def test_another_compiler_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "ccache clang")
    assert hatch_build.compilers() == [["ccache", "clang"]]
