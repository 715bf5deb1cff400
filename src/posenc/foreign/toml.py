"""TOML from elsewhere, bounded before it is read; and the TOML that is written for the same reader."""

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.foreign.files import read, text_of
from posenc.foreign.text import CannotRead
from posenc.foreign.values import cleaned

MOST_BYTES = 1 << 20
"""The size of a file of settings."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """The dictionary in a TOML file.

    Raises CannotRead, naming the file, for what is no TOML, and for more than a MiB of it; ModuleNotFoundError on
    Python 3.10 without tomli, which the extra `lab` brings there.
    """
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = text_of(read(path, most=MOST_BYTES), path)
    try:
        return cleaned(toml.loads(text), path)
    except toml.TOMLDecodeError as error:
        raise CannotRead(f"it is no TOML ({error})", file=path) from None
    except RecursionError:
        raise CannotRead("it is nested too deep", file=path) from None


def written_toml(facts: Mapping[str, Any]) -> str:
    """Words, numbers, truth values and lists of them, by name, as TOML.

    >>> print(written_toml({"task": "copy", "rate": 1e-05, "compile": False, "window": [4, 0]}), end="")
    task = "copy"
    rate = 1e-05
    compile = false
    window = [4, 0]
    """
    # JSON writes each of these as TOML does, but for one control character.
    said = {name: json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") for name, value in facts.items()}
    return "".join(f"{name} = {value}\n" for name, value in said.items())
