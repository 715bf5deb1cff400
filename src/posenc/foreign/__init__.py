"""Readers of untrusted input: every file, setting and string from elsewhere passes through this package.

Each reader bounds its input before it reads, loops or allocates. Input cannot name code to import, unless the user
names the same file (`code`). Every fault raises one error, `CannotRead`, which names the file, the field and a remedy.
"""

from posenc.foreign.files import lines, open_regular, read, regular_file, regular_files
from posenc.foreign.text import CannotRead, naming, one_line, quote, reading_with, shorten, suggestion, visible
from posenc.foreign.values import (
    bounded_count,
    expression,
    form_of,
    matches,
    parse_json,
    read_json,
    read_toml,
    shape,
    toml_text,
    unparse,
)

__all__ = [
    "CannotRead", "bounded_count", "expression", "form_of", "lines", "matches", "naming", "one_line", "open_regular",
    "parse_json", "quote", "read", "read_json", "read_toml", "reading_with", "regular_file", "regular_files", "shape",
    "shorten", "suggestion", "toml_text", "unparse", "visible",
]  # fmt: skip
