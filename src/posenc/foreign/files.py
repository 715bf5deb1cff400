"""Files from elsewhere: regular ones only, of bounded size, and none that a link takes out of its folder."""

import gzip
import os
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from posenc.foreign.text import CannotRead

MOST_BYTES = 16 << 20
"""The size of a JSON or text file that is read whole (bytes), where its reader states no other."""


def regular(path: str | Path, within: str | Path | None = None) -> Path:
    """The path of a regular file that may be opened: no folder, device or pipe, and nothing that waits for ever.

    within  the folder that it belongs to: a link that leads out of it is refused. A folder of a hub's cache
            (models--NAME/snapshots/REVISION) may link to the files beside it in models--NAME/blobs.

    Raises CannotRead, also where there is no such file.
    """
    path = Path(path)
    try:
        kind = os.stat(path).st_mode
        real = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        wrong = "there is no such file" if isinstance(error, FileNotFoundError) else said(error)
        raise CannotRead(wrong, file=path) from None
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "a device or a pipe"
        raise CannotRead(f"expected a file, got {what}", file=path)
    if within is not None and not any(real.is_relative_to(root) for root in roots(Path(within))):
        raise CannotRead(f"it is a link to '{real}', outside its folder", file=path, remedy="put the file itself there")
    return path


def roots(folder: Path) -> list[Path]:
    """The folders in which the files of a folder may really lie."""
    home = Path(os.path.realpath(folder))
    for parent in home.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(("models--", "datasets--")):
            return [home, parent.parent / "blobs"]
    return [home]


@contextmanager
def opened(path: str | Path, within: str | Path | None = None) -> Generator[BufferedReader]:
    """A regular file, opened to read its bytes. Raises CannotRead, also where the system fails while it is open."""
    path = regular(path, within)
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise CannotRead(said(error), file=path) from None


def files_of(folder: str | Path, pattern: str = "*") -> list[Path]:
    """The regular files of a folder, in the order of their names.

    Raises CannotRead for a link that leads out of it, as `regular` does: a copy of the folder would carry along what
    lies there.
    """
    try:
        found = sorted(file for file in Path(folder).glob(pattern) if file.is_file())
    except OSError as error:
        raise CannotRead(said(error), file=folder) from None
    return [regular(file, within=folder) for file in found]


def read(path: str | Path, *, within: str | Path | None = None, most: int = MOST_BYTES) -> bytes:
    """At most `most` bytes of a regular file, decompressed where its name ends in .gz.

    Raises CannotRead, also for a larger file.
    """
    with opened(path, within) as file:
        if Path(path).suffix != ".gz":
            data = file.read(most + 1)
        else:
            try:
                data = gzip.GzipFile(fileobj=file).read(most + 1)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise CannotRead(f"it is no whole gzip file: {said(error)}", file=path) from None
    if len(data) > most:
        raise CannotRead(f"it is larger than {most:,} bytes, which is more than posenc takes here", file=path)
    return data


def lines(path: str | Path, *, most: int = MOST_BYTES) -> Iterator[str]:
    """The lines of a text file, one at a time, none of them longer than `most` bytes. Raises CannotRead."""
    with opened(path) as file:
        while line := file.readline(most + 1):
            if len(line) > most:
                raise CannotRead(f"it has a line of more than {most:,} bytes", file=path)
            yield text_of(line, path)


def text_of(found: bytes, file: str | Path | None) -> str:
    """Bytes as UTF-8 text. Raises CannotRead."""
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise CannotRead(f"it is no text: byte {error.start} is no UTF-8", file=file) from None


def said(error: Exception) -> str:
    """What the system says of a file that it does not open."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"it cannot be opened ({reason})"
