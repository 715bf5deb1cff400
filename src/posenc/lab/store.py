"""The store of runs: files and folders that are there whole or not at all, checksums, and one writer at a time.

Whatever ends a process, a full disk, a kill or a power cut, what was there before is still there. A file is written
under a temporary name, brought to disk, and put in place in one step; so is a folder. What a run keeps of itself is
JSON with its own checksum. A checkpoint is a generation: a folder that appears whole.
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
from posenc.foreign.whole_files import CannotWrite, put, temporary_name, to_disk, told
from posenc.foreign.whole_files import write as write

LOCK = ".lock"
KEPT = 2
"""The generations of a checkpoint that are kept where nobody says: the last one, and the one before it."""

STEP = re.compile(r"step-(\d+)(?:\.(\d+))?")
TEMPORARY = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.part")
TEMPORARIES = ".*.part"
CHECKSUM = re.compile(rb',\s*"checksum": "([0-9a-f]{64})"\s*\}\s*\Z')


class InUse(ValueError):
    """A folder in which another process is at work."""


@contextmanager
def appearing(target: Path) -> Generator[Path]:
    """A folder to fill, which becomes `target` when it is whole; after an error it is gone.

    What killed processes have left of such folders beside it is removed first; each is locked by the process that
    fills it.

    Raises CannotWrite, also where somebody else has made the target meanwhile.
    """
    with told(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_folders(target.parent)
        hidden = temporary_name(target)
        hidden.mkdir()
    with ExitStack() as stack:
        # Some systems do not lock folders, or do not open them: nobody else clears them there either.
        with suppress(OSError):
            lock(stack.enter_context(folder_opened(hidden)))
        try:
            yield hidden
            with told(target):
                for file in sorted(hidden.rglob("*")):
                    to_disk(file)
                to_disk(hidden)
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                os.rename(hidden, target)
                to_disk(target.parent)
        except BaseException as error:
            shutil.rmtree(hidden, ignore_errors=True)
            if isinstance(error, CannotWrite):
                raise CannotWrite.of(target, error) from None
            raise


def half_written(*found: Iterable[Path]) -> Generator[tuple[Path, bool]]:
    """Which of these files and folders stand under temporary names, and whether each is a folder."""
    for left in chain(*found):
        if TEMPORARY.fullmatch(left.name):
            yield left, left.is_dir() and not left.is_symlink()


def clear_folders(parent: Path) -> None:
    """Remove the folders that were left half written under temporary names, by processes that are gone."""
    for left, is_folder in half_written(parent.glob(TEMPORARIES)):
        if is_folder:
            with suppress(OSError), folder_opened(left) as file:
                if lock(file):
                    shutil.rmtree(left)


@contextmanager
def folder_opened(folder: Path) -> Generator[int]:
    file = os.open(folder, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def inside(folder: Path, name: str) -> Path:
    """A folder within another, for what is written there.

    Raises ValueError where it is a link: what is written belongs into the folder itself.
    """
    if (path := folder / name).is_symlink():
        raise ValueError(f"'{path}' is a link, and what is written there belongs into the folder itself; remove it")
    return path


def set_aside(path: Path, why: str) -> Path:
    """Give a file that cannot be used the ending `why`, and a number where that name is taken; returns the new path."""
    aside, number = path.with_suffix(f".{why}"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_suffix(f".{why}-{number}")
    with told(path):
        os.rename(path, aside)
    return aside


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Make a folder and hold it for this process alone; what a killed process left half written in it is removed.

    The system itself lets go when the process ends, however it ends.

    Raises InUse where another process holds it, ValueError where it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A link would make a file wherever it leads.
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
    """Whether an open file is now locked by this process. Raises OSError where the system has no locks there."""
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
    """Remove all that was left half written under temporary names in a folder that is held."""
    for left, is_folder in half_written(folder.glob(TEMPORARIES), folder.glob(f"*/{TEMPORARIES}")):
        if is_folder:
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def sealed(facts: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A dictionary as JSON whose last entry is the SHA-256 of all the bytes before it."""
    assert facts and "checksum" not in facts
    body = json.dumps(facts, indent=indent)[:-1].rstrip()
    gap, end = (" ", "") if indent is None else ("\n" + " " * indent, "\n")
    return f'{body},{gap}"checksum": "{hashlib.sha256(body.encode()).hexdigest()}"{end}}}\n'.encode()


def unsealed(data: bytes, file: Path) -> dict[str, Any]:
    """The dictionary that `sealed` made bytes of.

    Raises CannotRead, naming the file, for what is no JSON, has no checksum, or that of something else.
    """
    facts = foreign.parse_json(data, file)
    if facts.pop("checksum", None) is None:
        raise CannotRead("it has lost its checksum", file=file)
    found = CHECKSUM.search(data)
    expect_checksum([data[: found.start()]] if found else [], found[1].decode() if found else "", file)
    return facts


def expect_checksum(pieces: Iterable[bytes], wanted: str, file: Path) -> None:
    """Raises CannotRead, naming the file, for data, in pieces, that have another checksum."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    if digest.hexdigest() != wanted:
        raise CannotRead("it does not fit its checksum: it was damaged or changed", file=file)


def read_json(path: Path) -> dict[str, Any]:
    """The dictionary of a file that `sealed` has made. Raises CannotRead, also for a link out of its folder."""
    return unsealed(foreign.read(path, within=path.parent), path)


def versions() -> dict[str, Any]:
    """What a result was made with."""
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
    """The name of this machine's processor, as far as it says one."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = next(
        (value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == "model name"),
        "",
    )
    return named or platform.processor() or platform.machine()


def made_by(made_with: Mapping[str, Any]) -> str:
    """In words, the posenc and torch among the versions that something was made with."""
    return " and ".join(f"{name} {made_with.get(name, 'of unknown version')}" for name in ("posenc", "torch"))


def other_versions(made_with: Mapping[str, Any] | None) -> str:
    """In words, the posenc and torch that something was made with where they are not those that run now; else ""."""
    return "" if made_with and made_by(made_with) == made_by(versions()) else made_by(made_with or {})


def add_generation(folder: Path, step: int, files: Mapping[str, Iterable[bytes | bytearray]], keep: int = KEPT) -> Path:
    """Write a generation of a checkpoint, step-000100, which is the latest when it appears; the last `keep` stay.

    Files are written in the order in which they are named, piece by piece. Whatever happens, the generation before is
    whole until this one is.

    Raises CannotWrite.
    """
    before = generations(folder)
    target, number = folder / f"step-{step:06}", 1
    while os.path.lexists(target):
        number += 1
        target = folder / f"step-{step:06}.{number}"
    with appearing(target) as hidden:
        for file, pieces in files.items():
            put(hidden / file, pieces)
    forget(folder, files, [*before, target.name][-keep:])
    return target


def forget(folder: Path, files: Iterable[str], but: list[str]) -> None:
    """Remove the generations, known by their files, that are not among `but`."""
    for old in generations(folder):
        if old not in but and all((folder / old / file).is_file() for file in files):
            # Under a temporary name, so that what a kill leaves of it is cleared later.
            doomed = temporary_name(folder / old)
            with suppress(OSError):
                os.rename(folder / old, doomed)
                shutil.rmtree(doomed)


def generations(folder: Path) -> list[str]:
    """The names of the generations in a folder, the latest last; each has appeared whole."""
    found = [match for path in folder.glob("step-*") if (match := STEP.fullmatch(path.name)) and path.is_dir()]
    return [match[0] for match in sorted(found, key=lambda match: (int(match[1]), int(match[2] or 1)))]
