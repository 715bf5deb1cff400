"""Files that are there whole or not at all: written under a temporary name, then put in place in one step."""

import errno
import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path


class CannotWrite(OSError):
    """What could not be written, why, and what to do; everything that was there before is still there."""

    reason: str

    @classmethod
    def of(cls, path: Path, cause: OSError) -> "CannotWrite":
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        todo = "make room and give the same command again" if full else "choose another folder"
        reason = cause.reason if isinstance(cause, CannotWrite) else cause.strerror or str(cause)
        made = cls(f"'{path}' cannot be written: {reason}; what was finished before is kept; {todo}")
        made.errno, made.reason = cause.errno, reason
        return made


def write(path: Path, data: bytes) -> Path:
    """Write a file, whole or not at all: nobody ever reads half of it, and when this returns it is on the disk.

    Raises CannotWrite.
    """
    with told(path):
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
    """Write a new file, piece by piece; for a folder that is not there yet."""
    with told(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        for piece in pieces:
            left = memoryview(piece)
            with told(path):
                while left:
                    left = left[os.write(file, left) :]
    finally:
        os.close(file)


def to_disk(path: Path) -> None:
    """Return when a file or folder is on the disk, not only on its way there."""
    if os.name == "nt" and path.is_dir():  # which Windows does not open
        return
    with told(path):
        opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(opened)
        except OSError as error:
            # Some network drives cannot bring a folder to disk by itself.
            if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
                raise
        finally:
            os.close(opened)


def temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.part")


@contextmanager
def told(path: Path) -> Generator[None]:
    """What the system says while a path is written becomes CannotWrite."""
    try:
        yield
    except OSError as error:
        raise CannotWrite.of(path, error) from None


def users_cache() -> Path:
    """The folder for what can be made again: POSENC_CACHE, or posenc in XDG_CACHE_HOME or ~/.cache.

    Raises RuntimeError where no home folder is known.
    """
    environ = os.environ
    cache = environ.get("POSENC_CACHE") or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "posenc")
    return Path(cache).expanduser()
