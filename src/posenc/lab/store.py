"""The store of runs: atomic files and folders, checksums, and one writer at a time.

A full disk, a kill or a power cut never damages existing files. A file is written under a temporary name, synced to
disk, and renamed; so is a folder. Records are JSON with its own checksum. A checkpoint is a generation: a folder that
appears complete.
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from posenc import foreign
from posenc.foreign import CannotRead
from posenc.foreign.whole_files import CannotWrite, put, temporary_name, to_disk, write_errors
from posenc.foreign.whole_files import write as write

LOCK = ".lock"
KEEP = 2
"""How many generations of a checkpoint stay by default: the last two."""

STEP = re.compile(r"step-(\d+)(?:\.(\d+))?")
TEMPORARY = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.part")
TEMPORARIES = ".*.part"
CHECKSUM = re.compile(rb',\s*"checksum": "([0-9a-f]{64})"\s*\}\s*\Z')


class InUse(ValueError):
    """A folder that another process has locked."""


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """Yield a temporary folder, which is renamed to `target` after the block; an error removes it.

    Temporary folders of killed processes beside it are removed first; each is locked by the process that fills it.

    Raises CannotWrite, also where another process has made the target meanwhile.
    """
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_folders(target.parent)
        temporary = temporary_name(target)
        temporary.mkdir()
    with ExitStack() as stack:
        # Where a system cannot open or lock folders, no other process clears them either.
        with suppress(OSError):
            lock(stack.enter_context(folder_descriptor(temporary)))
        try:
            yield temporary
            with write_errors(target):
                for file in sorted(temporary.rglob("*")):
                    to_disk(file)
                to_disk(temporary)
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                os.rename(temporary, target)
                to_disk(target.parent)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, CannotWrite):
                raise CannotWrite.from_error(target, error) from None
            raise


def temporary_paths(*paths: Iterable[Path]) -> Generator[tuple[Path, bool]]:
    """Yield the paths with temporary names, and whether each is a folder."""
    for path in chain(*paths):
        if TEMPORARY.fullmatch(path.name):
            yield path, path.is_dir() and not path.is_symlink()


def clear_folders(parent: Path) -> None:
    """Remove the temporary folders of processes that have ended."""
    for path, is_folder in temporary_paths(parent.glob(TEMPORARIES)):
        if is_folder:
            with suppress(OSError), folder_descriptor(path) as file:
                if lock(file):
                    shutil.rmtree(path)


@contextmanager
def folder_descriptor(folder: Path) -> Generator[int]:
    file = os.open(folder, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def subfolder(folder: Path, name: str) -> Path:
    """The path of a folder in another, to write into. Raises ValueError where it is a link."""
    if (path := folder / name).is_symlink():
        raise ValueError(f"'{path}' is a link, and what is written there belongs into the folder itself; remove it")
    return path


def set_aside(path: Path, why: str) -> Path:
    """Rename a damaged file to the suffix `why`, numbered if that name exists; return the new path."""
    aside, number = path.with_suffix(f".{why}"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_suffix(f".{why}-{number}")
    with write_errors(path):
        os.rename(path, aside)
    return aside


@contextmanager
def locked_folder(folder: Path) -> Generator[None]:
    """Make a folder, lock it for this process, and remove the temporary files of killed processes in it.

    The system releases the lock when the process ends, however it ends.

    Raises InUse where another process has the lock, ValueError where the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A link would create a file at its target.
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise unwritable(folder, error) from None
    try:
        try:
            free = lock(file)
        except OSError as error:
            raise unwritable(folder, error) from None
        if not free:
            raise InUse(
                f"another posenc is at work in '{folder}'; wait until it is over, or choose another folder with --out"
            )
        clear(folder)
        yield
    finally:
        os.close(file)


def unwritable(folder: Path, cause: OSError) -> ValueError:
    return ValueError(f"cannot write into '{folder}': {cause.strerror}; choose another folder with --out")


def lock(file: int) -> bool:
    """Lock an open file; return False where another process has the lock. Raises OSError where locks are missing."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def clear(folder: Path) -> None:
    """Remove all temporary files and folders in a locked folder."""
    for path, is_folder in temporary_paths(folder.glob(TEMPORARIES), folder.glob(f"*/{TEMPORARIES}")):
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def dump_json(data: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Encode a dictionary as JSON whose last entry is the SHA-256 of all bytes before it."""
    assert data and "checksum" not in data
    body = json.dumps(data, indent=indent)[:-1].rstrip()
    gap, end = (" ", "") if indent is None else ("\n" + " " * indent, "\n")
    return f'{body},{gap}"checksum": "{hashlib.sha256(body.encode()).hexdigest()}"{end}}}\n'.encode()


def load_json(data: bytes, file: Path) -> dict[str, Any]:
    """Decode the output of `dump_json`.

    Raises CannotRead, which names the file, for invalid JSON, and for a missing or wrong checksum.
    """
    content = foreign.parse_json(data, file)
    if content.pop("checksum", None) is None:
        raise CannotRead("it has lost its checksum", file=file)
    match = CHECKSUM.search(data)
    expect_checksum([data[: match.start()]] if match else [], match[1].decode() if match else "", file)
    return content


def expect_checksum(pieces: Iterable[bytes], expected: str, file: Path) -> None:
    """Raise CannotRead, which names the file, for data with another checksum."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    if digest.hexdigest() != expected:
        raise CannotRead("it does not fit its checksum: it was damaged or changed", file=file)


def read_checked_json(path: Path) -> dict[str, Any]:
    """Read a file of `dump_json`. Raises CannotRead, also for a link out of its folder."""
    return load_json(foreign.read(path, folder=path.parent), path)


def versions() -> dict[str, Any]:
    """The versions and the machine that make a result."""
    import torch

    import posenc

    return {
        "posenc": posenc.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "processor": processor(),
        "threads": torch.get_num_threads(),
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """The name of this machine's processor, or its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model_name = next(
        (value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == "model name"),
        "",
    )
    return model_name or platform.processor() or platform.machine()


def version_words(made_with: Mapping[str, Any]) -> str:
    """The versions of posenc and torch, as text."""
    return " and ".join(f"{name} {made_with.get(name, 'of unknown version')}" for name in ("posenc", "torch"))


def version_difference(made_with: Mapping[str, Any] | None) -> str:
    """The versions of posenc and torch, as text, where they differ from those that run now; else ""."""
    return "" if made_with and version_words(made_with) == version_words(versions()) else version_words(made_with or {})


def add_generation(folder: Path, step: int, files: Mapping[str, Iterable[bytes | bytearray]], keep: int = KEEP) -> Path:
    """Write a generation of a checkpoint, step-000100, and keep the last `keep`.

    Files are written in the order of `files`, piece by piece. The previous generation stays until this one is complete.

    Raises CannotWrite.
    """
    old_names = generations(folder)
    target, number = folder / f"step-{step:06}", 1
    while os.path.lexists(target):
        number += 1
        target = folder / f"step-{step:06}.{number}"
    with new_folder(target) as temporary:
        for file, pieces in files.items():
            put(temporary / file, pieces)
    remove_generations(folder, files, [*old_names, target.name][-keep:])
    return target


def remove_generations(folder: Path, files: Iterable[str], kept_names: list[str]) -> None:
    """Remove the generations with these files that are not in `kept_names`."""
    for old in generations(folder):
        if old not in kept_names and all((folder / old / file).is_file() for file in files):
            # Under a temporary name, so that a later process clears it after a kill.
            temporary = temporary_name(folder / old)
            with suppress(OSError):
                os.rename(folder / old, temporary)
                shutil.rmtree(temporary)


def generations(folder: Path) -> list[str]:
    """The names of the complete generations in a folder, the latest last."""
    matches = [match for path in folder.glob("step-*") if (match := STEP.fullmatch(path.name)) and path.is_dir()]
    return [match[0] for match in sorted(matches, key=lambda match: (int(match[1]), int(match[2] or 1)))]
