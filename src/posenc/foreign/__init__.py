"""The boundary for what others wrote: the only door by which files, settings and strings from elsewhere come in.

Everything behind it is bounded before it is read, looped over or allocated; nothing that comes in names code to
import, unless a person names the same file (`code`); and whatever is wrong is told by one error, `CannotRead`, which
names the file, the field and what to do.
"""

from posenc.foreign.files import files_of, lines, opened, read, regular
from posenc.foreign.text import CannotRead, naming, near, one_line, quoted, reading_with, shortened, visible
from posenc.foreign.values import (
    count,
    expression,
    form_of,
    matches,
    parse_json,
    read_json,
    read_toml,
    shape,
    written,
    written_toml,
)

__all__ = [
    "CannotRead", "count", "expression", "files_of", "form_of", "lines", "matches", "naming", "near", "one_line",
    "opened", "parse_json", "quoted", "read", "read_json", "read_toml", "reading_with", "regular", "shape",
    "shortened", "visible", "written", "written_toml",
]  # fmt: skip
