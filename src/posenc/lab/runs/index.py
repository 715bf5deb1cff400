"""The index of a folder: what summaries read of each record, a sealed line each, so that thousands stay closed.

A record is a file of its own, whole or not at all, and it is what counts. The index is only ever made from records: a
line says how large its file was and when it was written, and where the file is another one by now, or the line is
damaged, the record is read again. The index may be deleted at any time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead, matches
from posenc.lab import store
from posenc.lab.runs import record
from posenc.lab.store import CannotWrite

FILE = "index.jsonl"

LEFT_OUT = ("attention", "pictures")
"""What a line does not have of a record: the pictures of one run, nine tenths of its bytes."""

MOST_WHOLE = 1_000
"""More records than these are read from the index, without the pictures of each run."""


def without_pictures(full: Mapping[str, Any]) -> dict[str, Any]:
    """What a line has of a record, or of its form."""
    return {name: value for name, value in full.items() if name not in LEFT_OUT}


FORM: dict[str, Any] = {
    "size": int,
    "mtime_ns": int,
    "row": without_pictures(record.FORM),
}


def file_of(folder: Path, key: str) -> Path:
    """Where the record of a key lies in a folder."""
    return folder / "records" / f"{key}.json"


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The records that the index knows as they are now, without their pictures; a line may come twice."""
    path = folder / FILE
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            # What was cut off, or is of another version, is read where it comes from.
            with suppress(CannotRead, FileNotFoundError):
                facts, sealed = store.unsealed(line, path)
                matches(facts, FORM, file=path)
                if sealed and seen(file_of(folder, facts["row"]["key"])) == (facts["size"], facts["mtime_ns"]):
                    yield facts["row"]


def add(folder: Path, full: dict[str, Any]) -> dict[str, Any]:
    """Add the line of a record as it is in its file, and return what of it the line has.

    It is not brought to disk: what is lost of an index is made again. Raises CannotWrite.
    """
    row = without_pictures(full)
    size, mtime_ns = seen(file_of(folder, full["key"]))
    store.add_line(folder / FILE, store.sealed({"size": size, "mtime_ns": mtime_ns, "row": row}))
    return row


def seen(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def records(folder: Path, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The records of a folder, or those of these keys; where they are more than 1,000, without the pictures of each.

    Raises ValueError when there is none, CannotRead when one is damaged.
    """
    keys = record.keys_in(folder) if keys is None else keys
    if len(keys) <= MOST_WHOLE:
        return record.read_these(folder, keys)
    known = {row["key"]: row for row in rows(folder)}
    return [known.get(key) or read(folder, key) for key in keys]


def read(folder: Path, key: str) -> dict[str, Any]:
    """What a line has of a record, read from its file; the index knows it from now on, where it can be written."""
    [full] = record.read_these(folder, [key])
    with suppress(CannotWrite):
        return add(folder, full)
    return without_pictures(full)
