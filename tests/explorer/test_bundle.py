"""The bundle that ships is the one that web/ builds."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from posenc.lab.views import page

WEB = Path(__file__).parents[2] / "web"
BUILD = "build web/ again: cd web && npm ci && npm run build"
BUILD_FILES = ("package-lock.json", "package.json", "svelte.config.js", "tsconfig.json", "vite.config.ts")
NODE = (20, 19)
NO_REGISTRY = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
    "E401",
    "E403",
    "E503",
)


def source_hash(web: Path) -> str:
    """Return the hash of the sources, as web/vite.config.ts computes it."""
    digest = hashlib.sha256()
    sources = (file.relative_to(web).as_posix() for file in (web / "src").rglob("*") if file.is_file())
    for name in sorted([*BUILD_FILES, *sources]):
        digest.update(f"{name}\0{(web / name).read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()


def test_the_bundle_says_what_it_was_built_from():
    first = page.SCRIPT.read_text(encoding="utf-8").partition("\n")[0]
    assert first == f"/*! built from {source_hash(WEB)}", BUILD


def test_the_bundle_keeps_the_licences_of_what_is_in_it():
    head = page.SCRIPT.read_text(encoding="utf-8").partition("*/")[0]
    dependencies = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]
    for name, version in dependencies.items():
        assert f"\n{name} {version}\n" in head
    assert head.count("Permission ") >= len(dependencies)


@pytest.mark.slow
def test_web_builds_the_bundle_byte_for_byte_wherever_it_lies(tmp_path):
    """Slow: it installs web/'s build tools. The fast tests compare the bundle's hash of these sources."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("no npm: install node 20")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < NODE:
        pytest.skip(f"node {version.strip()} is too old to build web/, which needs {NODE[0]}.{NODE[1]}")
    web = tmp_path / "another place" / "web"
    shutil.copytree(WEB, web, ignore=shutil.ignore_patterns("node_modules"))
    install = subprocess.run(
        [npm, "ci", "--prefer-offline", "--no-audit", "--no-fund"], cwd=web, capture_output=True, text=True, timeout=240
    )
    if install.returncode and any(word in install.stderr for word in NO_REGISTRY):
        pytest.skip(f"no registry: {install.stderr.strip().splitlines()[0]}")
    assert install.returncode == 0, install.stderr
    out = tmp_path / "built"
    build = subprocess.run(
        [npm, "run", "build", "--", "--outDir", str(out)], cwd=web, capture_output=True, text=True, timeout=240
    )
    assert build.returncode == 0, build.stderr
    assert [file.name for file in out.iterdir()] == [page.SCRIPT.name]
    assert (out / page.SCRIPT.name).read_bytes() == page.SCRIPT.read_bytes(), BUILD
