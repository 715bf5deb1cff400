"""Writes src/posenc/__init__.pyi: the public names, as type checkers and editors see them.

    .venv/bin/python tests/write_stub.py

posenc imports each name when it is first asked for, which no type checker follows. A test holds what is written to what
there is.
"""

from collections import defaultdict
from pathlib import Path

import posenc
from posenc import catalogue

STUB = Path(posenc.__file__).with_suffix(".pyi")
COMMAND = ".venv/bin/python tests/write_stub.py"


def stub() -> str:
    """The text of the stub."""
    homes = defaultdict(list)
    for name, module in posenc.HOMES.items():
        homes[f"posenc.{module}"].append(name)
    for name, encoding in catalogue.ENCODINGS.class_names.items():
        homes[f"posenc.encodings.{catalogue.ENCODINGS.module_of(encoding)}"].append(name)
    for name, where in posenc.MODULES.items():
        homes[f"posenc.{where}".rpartition(".")[0]].append(f"{name} as {name}")
    lines = [
        f'"""The public names, each from its home; written by `{COMMAND}`."""',
        "",
        *(f"from posenc import {name} as {name}" for name in sorted(posenc.modules())),
        *(f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(homes.items())),
        "",
        "__version__: str",
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in sorted(posenc.__all__, key=as_ruff_sorts)),
        "]",
    ]
    return "\n".join(lines) + "\n"


def as_ruff_sorts(name: str) -> tuple[bool, bool, str]:
    """Constants first, then classes, then the rest."""
    return not name.isupper(), name[0].islower(), name


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
