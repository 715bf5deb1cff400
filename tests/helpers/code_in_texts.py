"""The blocks of code in the texts, and running them."""

import re
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_PYTHON = ("python", "{code-cell}")


def name(path: Path) -> str:
    return path.relative_to(HOME).as_posix()


def blocks(path: Path, *, python: bool) -> list[str]:
    """The code blocks of a text, those in Python or all others."""
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [code for language, code in found if (language in IN_PYTHON) == python]


def prose(path: Path) -> str:
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


def run(path: Path) -> None:
    """The Python of a text, from top to bottom."""
    namespace = {"__name__": "a_text"}
    for place, code in enumerate(blocks(path, python=True)):
        exec(compile(code, f"{name(path)}, Python block {place + 1}", "exec"), namespace)
    if "matplotlib" in sys.modules:
        from matplotlib import pyplot

        pyplot.close("all")
