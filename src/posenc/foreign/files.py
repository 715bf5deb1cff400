"""Read untrusted files: regular files only, of bounded size, and no link that leads out of its folder."""

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
"""The default size limit of a JSON or text file (bytes)."""


def regular_file(path: str | Path, folder: str | Path | None = None) -> Path:
    """Return the path if it is a regular file. Folders, devices and pipes are refused: reading could block.

    folder  the folder that the file belongs to: a link that leads out of it is refused. A folder of a hub's cache
            (models--NAME/snapshots/REVISION) may link to the files beside it in models--NAME/blobs.

    Raises CannotRead, also for a missing file.
    """
    path = Path(path)
    try:
        kind = os.stat(path).st_mode
        real = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        wrong = "there is no such file" if isinstance(error, FileNotFoundError) else os_reason(error)
        raise CannotRead(wrong, file=path) from None
    if not stat.S_ISREG(kind):
        kind_name = "a folder" if stat.S_ISDIR(kind) else "a device or a pipe"
        raise CannotRead(f"expected a file, got {kind_name}", file=path)
    if folder is not None and not any(real.is_relative_to(root) for root in allowed_roots(Path(folder))):
        raise CannotRead(f"it is a link to '{real}', outside its folder", file=path, remedy="put the file itself there")
    return path


def allowed_roots(folder: Path) -> list[Path]:
    """Return the folders to which links in a folder may lead."""
    home = Path(os.path.realpath(folder))
    for parent in home.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(("models--", "datasets--")):
            return [home, parent.parent / "blobs"]
    return [home]


@contextmanager
def open_regular(path: str | Path, folder: str | Path | None = None) -> Generator[BufferedReader]:
    """Open a regular file to read its bytes. Raises CannotRead, also for an OSError while it is open."""
    path = regular_file(path, folder)
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise CannotRead(os_reason(error), file=path) from None


def regular_files(folder: str | Path, pattern: str = "*") -> list[Path]:
    """Return the regular files of a folder, sorted by name.

    Raises CannotRead, as `regular_file` does, for a link out of it: a copy of the folder would include its target.
    """
    try:
        files = sorted(file for file in Path(folder).glob(pattern) if file.is_file())
    except OSError as error:
        raise CannotRead(os_reason(error), file=folder) from None
    return [regular_file(file, folder=folder) for file in files]


def read(path: str | Path, *, folder: str | Path | None = None, limit: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file, decompressed if its name ends in .gz.

    Raises CannotRead, also for more than `limit` bytes.
    """
    with open_regular(path, folder) as file:
        if Path(path).suffix != ".gz":
            data = file.read(limit + 1)
        else:
            try:
                data = gzip.GzipFile(fileobj=file).read(limit + 1)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise CannotRead(f"it is no whole gzip file: {os_reason(error)}", file=path) from None
    if len(data) > limit:
        raise CannotRead(f"it is larger than {limit:,} bytes, which is more than posenc takes here", file=path)
    return data


def lines(path: str | Path, *, limit: int = MOST_BYTES) -> Iterator[str]:
    """Yield the lines of a text file. Raises CannotRead, also for a line of more than `limit` bytes."""
    with open_regular(path) as file:
        while line := file.readline(limit + 1):
            if len(line) > limit:
                raise CannotRead(f"it has a line of more than {limit:,} bytes", file=path)
            yield text_of(line, path)


def text_of(data: bytes, file: str | Path | None) -> str:
    """Decode bytes as UTF-8. Raises CannotRead."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CannotRead(f"it is no text: byte {error.start} is no UTF-8", file=file) from None


def os_reason(error: Exception) -> str:
    """Return the message for an error of the system on a file."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"it cannot be opened ({reason})"
