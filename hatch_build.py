#!/usr/bin/env python3
"""Compile the C code of the kernels, where there is a compiler, into a library that lies beside them.

    python3 hatch_build.py          compile in place (after a change of the C code)

A wheel also gets the rows of the board, which advice is given from.

Installing the package does the same, also in editable mode, and ships the library in the wheel, which then is for this
platform alone. Without a compiler, or when it fails, the package is installed without the library, and PyTorch's own
operators take over: posenc.kernels.status() says so. $CC names another compiler than cc, gcc or clang.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path("src/posenc/kernels/rotation")
SOURCE = "rotate_pairs.c"
LIBRARY = "libposenc.so"
BOARD, BOARD_IN_WHEEL = Path("docs/board"), "posenc/lab/board/committed"
KEPT_OF_BOARD = ("rows.jsonl.gz", "costs.json")
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"]
# Not every compiler has OpenMP: without it the library runs on one thread.
THREADS = [["-fopenmp"], []]


def compilers() -> list[list[str]]:
    """The commands to try: $CC alone if it is set, else what is usual."""
    if os.environ.get("CC"):
        return [shlex.split(os.environ["CC"])]
    return [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]


def compile_library(root: Path, more_flags: Sequence[str] = ()) -> str | None:
    """Compile into the folder of the kernels; the reason why there is no library, or None.

    A library of an older build is removed, so that none is left that does not belong to its source.
    """
    folder = root / FOLDER
    library = folder / LIBRARY
    reason = "no C compiler was found (set CC to name one)"
    for compiler in compilers():
        for threads in THREADS:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch) / LIBRARY
                command = [*compiler, *FLAGS, *more_flags, *threads, "-o", str(made), str(folder / SOURCE)]
                try:
                    done = subprocess.run(command, capture_output=True, text=True)
                except OSError as error:
                    reason = f"{shlex.join(compiler)} cannot be started ({error})"
                    break
                if done.returncode == 0 and made.exists():
                    # In one step: a process that has the old one open keeps it.
                    os.replace(made, library)
                    return None
                reason = f"{shlex.join(compiler)} failed: {(done.stderr.strip() or 'no message').splitlines()[0]}"
    library.unlink(missing_ok=True)
    return reason


def platform_tag() -> str:
    """The wheel tag of a library that no version of Python matters to, on this platform."""
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def for_an_index(text: str) -> str:
    """A text as it is shown where there is no checkout: without its pictures, and links to its files as plain words."""
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # called as a program, where nothing is installed
    BuildHookInterface = MetadataHookInterface = object


class ReadmeHook(MetadataHookInterface):
    """What hatchling calls for the description that an index shows."""

    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_an_index(text)}


class CustomBuildHook(BuildHookInterface):
    """What hatchling calls before it makes a wheel."""

    def initialize(self, version: str, build_data: dict) -> None:
        if version == "standard":  # an editable install reads them where they are
            found = (Path(self.root) / BOARD / name for name in KEPT_OF_BOARD)
            build_data["force_include"] |= {str(one): f"{BOARD_IN_WHEEL}/{one.name}" for one in found if one.exists()}
        reason = compile_library(Path(self.root))
        if reason is not None:
            self.app.display_warning(f"posenc is installed without compiled code: {reason}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = platform_tag()
        build_data["artifacts"].append(str(FOLDER / LIBRARY))


if __name__ == "__main__":
    sys.exit(compile_library(Path(__file__).resolve().parent))
