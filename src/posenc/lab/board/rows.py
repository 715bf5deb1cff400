"""Rows: what the board keeps of each run, one sealed line of JSON in the file of its task, sorted by key.

A full record holds pictures, curves and attention, some tens of kilobytes; of thousands of runs the numbers are enough.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead, matches
from posenc.foreign import read as read_bytes
from posenc.lab import store
from posenc.lab.results.summary import Record, task_of
from posenc.lab.runs import index, record
from posenc.lab.sweeps import sweep

FOLDER = "records"

KEPT = (
    "schema",
    "key",
    "experiment",
    "parameters",
    "versions",
    "text",
    "trained_tokens",
    "steps",
    "train_cpu_s",
    "cpu_s",
    "steps_to_learned",
    "cpu_s_to_learned",
    "learned",
    "in_distribution",
    "lengths",
)
"""What a row has of a record. All that summaries read is in it, so they read rows as they read records."""

FORM: dict[str, Any] = {name: record.FORM[name] for name in KEPT}

DIGITS = 6

MOST_BYTES = 64 << 20
"""The size of a task's file: far more than the rows of every encoding and a hundred seeds."""


def row_of(full: Record) -> Record:
    """The row of a full record."""
    row = {name: full[name] for name in KEPT}
    if row["text"]:
        row["text"] = {name: row["text"][name] for name in ("name", "sha256")}
    row["lengths"] = [{name: value for name, value in at.items() if value is not None} for at in row["lengths"]]
    return short(row)


def short(value: Any) -> Any:
    """The value with its numbers to six digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: short(inner) for name, inner in value.items()}
    return [short(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def file_of(folder: Path, task: str) -> Path:
    """Where the rows of a task lie."""
    return folder / FOLDER / f"{re.sub(r'[^A-Za-z0-9_]+', '-', task).strip('-')}.jsonl"


def read(folder: Path) -> list[Record]:
    """All rows of a board, each held to its checksum and form; none where there is no board yet.

    Raises CannotRead, naming file and line, for one that is damaged.
    """
    return [row for path in sorted((folder / FOLDER).glob("*.jsonl")) for row in read_file(path)]


def there(folder: Path) -> list[Record]:
    """All rows of a board. Raises ValueError where there are none, and CannotRead."""
    if found := read(folder):
        return found
    raise ValueError(
        f"there is no board in '{folder}': its rows are in the repository, in docs/board; name the folder with --rows, "
        f"or run some with posenc board --out FOLDER"
    )


def read_file(path: Path) -> list[Record]:
    """The rows of one file. Raises CannotRead."""
    if not path.exists():
        return []
    found = []
    lines = read_bytes(path, within=path.parent, most=MOST_BYTES).splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        place = path.with_name(f"{path.name}:{number}")
        row, sealed = store.unsealed(line, place)
        matches(row, FORM, file=place)
        if not sealed:
            raise CannotRead("it has lost its checksum", file=place, remedy="take the file as it was committed")
        found.append(row)
    return found


def add(folder: Path, new: Iterable[Record]) -> None:
    """Put rows into the files of their tasks, each file whole or not at all; one with a key that is there replaces it.

    Raises CannotWrite, and CannotRead where a file is damaged.
    """
    by_file: dict[Path, list[Record]] = {}
    for row in new:
        by_file.setdefault(file_of(folder, task_of(row)), []).append(row)
    for path, rows in by_file.items():
        kept = {row["key"]: row for row in [*read_file(path), *rows]}
        store.write(path, b"".join(store.sealed(kept[key]) for key in sorted(kept)))


def fold(work: Path, folder: Path) -> int:
    """Move all full records of a working folder into rows, and say how many; a damaged one is set aside.

    Whenever it is killed, a run is in a full record or in a row, and at worst in both.
    """
    paths = sorted((work / FOLDER).glob("*.json"))
    found = [full for path in paths if (full := sweep.kept_record(path))]
    add(folder, map(row_of, found))
    for full in found:
        (work / FOLDER / f"{full['key']}.json").unlink(missing_ok=True)
    (work / index.FILE).unlink(missing_ok=True)
    return len(found)


def together(*boards: Sequence[Record]) -> list[Record]:
    """The rows of several boards; of those with one key the last."""
    return list({row["key"]: row for rows in boards for row in rows}.values())
