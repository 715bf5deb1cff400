"""Write files atomically: under a temporary name first, then renamed in one step."""

import errno
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path


class CannotWrite(OSError):
    """A file that cannot be written: the message says why and what to do. Existing files are unchanged."""

    reason: str

    @classmethod
    def from_error(cls, path: Path, cause: OSError) -> "CannotWrite":
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        todo = "make room and give the same command again" if full else "choose another folder"
        reason = cause.reason if isinstance(cause, CannotWrite) else cause.strerror or str(cause)
        error = cls(f"'{path}' cannot be written: {reason}; what was finished before is kept; {todo}")
        error.errno, error.reason = cause.errno, reason
        return error


def write(path: Path, data: bytes) -> Path:
    """Write a file atomically. No reader ever sees half of it, and it is on the disk on return.

    Raises CannotWrite.
    """
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(path)
        try:
            put(temporary, [data])
            to_disk(temporary)
            os.replace(temporary, path)
            to_disk(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    return path


def put(path: Path, pieces: Iterable[bytes | bytearray]) -> None:
    """Write a new file piece by piece, in a folder that no reader sees yet."""
    with write_errors(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            with write_errors(path):
                while rest:
                    rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def to_disk(path: Path) -> None:
    """Flush a file or folder to the disk."""
    if os.name == "nt" and path.is_dir():  # which Windows does not open
        return
    with write_errors(path):
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some network drives cannot flush a folder by itself.
            if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
                raise
        finally:
            os.close(descriptor)


def temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.part")


@contextmanager
def write_errors(path: Path) -> Generator[None]:
    """Turn an OSError while a path is written into CannotWrite."""
    try:
        yield
    except OSError as error:
        raise CannotWrite.from_error(path, error) from None


def users_cache() -> Path:
    """Return the cache folder: POSENC_CACHE, or posenc in XDG_CACHE_HOME or ~/.cache.

    Raises RuntimeError if the home folder is unknown.
    """
    environ = os.environ
    cache = environ.get("POSENC_CACHE") or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "posenc")
    return Path(cache).expanduser()
