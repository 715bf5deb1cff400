"""The checklist of a release: what it refuses, in which order it works, and that nothing is published by it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from posenc.foreign.code import import_file

ROOT = Path(__file__).parents[2]
release = import_file(str(ROOT / "release.py"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs" / "changes", tmp_path / "docs" / "changes")
    return tmp_path


def change_file(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_the_files_of_the_project_say_one_version(root: Path) -> None:
    version = release.check_versions(root)
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    change_file(root / "CITATION.cff", f"version: {version}", "version: 7.0")
    with pytest.raises(
        ValueError, match=rf"pyproject\.toml says version {version}, CITATION\.cff says 7\.0; make them"
    ):
        release.check_versions(root)


def test_a_version_has_to_stand_in_the_changelog(root: Path) -> None:
    version = release.check_versions(root)
    (root / f"docs/changes/{version}.md").unlink()
    with pytest.raises(
        ValueError, match=rf"CHANGELOG\.md has no link to docs/changes/{version}\.md; say there what is new"
    ):
        release.check_versions(root)
    (root / f"docs/changes/{version}.md").touch()
    change_file(root / "CHANGELOG.md", f"(docs/changes/{version}.md)", "")
    with pytest.raises(ValueError, match="has no link to"):
        release.check_versions(root)


def test_a_file_without_a_version_is_named(root: Path) -> None:
    (root / "CITATION.cff").write_text("title: posenc")
    with pytest.raises(ValueError, match=r"CITATION\.cff names no version; expected a line like"):
        release.check_versions(root)


def test_nothing_is_published_and_it_says_how_a_person_does(monkeypatch, capsys) -> None:
    monkeypatch.setattr(release, "run", lambda *command, **options: pytest.fail(f"ran {command}"))
    assert release.main([]) == 2
    output = capsys.readouterr().err
    assert "run.py release publishes nothing" in output and "twine upload" in output


def test_it_tries_the_wheel_and_never_the_checkout(tmp_path: Path, monkeypatch) -> None:
    ran: list[tuple[str, Path | None]] = []
    version = release.check_versions(ROOT)

    def fake(*command: object, folder: Path | None = None, path: str | None = None) -> None:
        ran.append((" ".join(map(str, command)), folder))
        if "build" in command:
            (tmp_path / "dist" / f"posenc-{version}-py3-none-any.whl").touch()
            release.tarfile.open(tmp_path / "dist" / f"posenc-{version}.tar.gz", "w:gz").close()

    monkeypatch.setattr(release, "run", fake)
    monkeypatch.setattr(release, "clean_environment", lambda folder: "clean-python")
    assert release.main(["--dry-run", "--into", str(tmp_path / "dist")]) == 0
    words = [command for command, _ in ran]
    order = ["-m build", "twine check --strict", "pip install", "posenc compare", "kernels.status()", "-m pytest"]
    assert [next(n for n, first_command in enumerate(words) if part in first_command) for part in order] == list(
        range(len(order))
    )
    commands = [(command, folder) for command, folder in ran if "posenc compare" in command or "pytest -q" in command]
    assert all(c.startswith("clean-python") and f and ROOT not in (f, *f.parents) for c, f in commands)
    assert not any("upload" in first_command for first_command in words)


def test_a_step_that_fails_ends_it_in_one_line(monkeypatch, capsys) -> None:
    def fail(*command: object, **arguments: object) -> None:
        raise subprocess.CalledProcessError(1, "build")

    monkeypatch.setattr(release, "run", fail)
    assert release.main(["--dry-run"]) == 1
    assert capsys.readouterr().err.endswith("nothing is fit to be published\n")


def test_a_folder_with_another_release_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "old.whl").touch()
    monkeypatch.setattr(release, "run", lambda *command, **options: pytest.fail(f"ran {command}"))
    assert release.main(["--dry-run", "--into", str(tmp_path)]) == 1
    assert "is not empty; name a folder for this release alone" in capsys.readouterr().err
