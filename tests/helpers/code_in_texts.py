"""Find and run the code blocks of the documentation."""

import re
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON_LABELS = ("python", "{code-cell}")


def name(path: Path) -> str:
    return path.relative_to(HOME).as_posix()


def blocks(path: Path, *, python: bool) -> list[str]:
    """Return the code blocks of a text: those in Python, or all others."""
    code_blocks = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [code for language, code in code_blocks if (language in PYTHON_LABELS) == python]


def prose(path: Path) -> str:
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


def run(path: Path) -> None:
    """Run the Python blocks of a text in order, in one namespace."""
    namespace = {"__name__": "a_text"}
    for place, code in enumerate(blocks(path, python=True)):
        exec(compile(code, f"{name(path)}, Python block {place + 1}", "exec"), namespace)
    if "matplotlib" in sys.modules:
        from matplotlib import pyplot

        pyplot.close("all")
