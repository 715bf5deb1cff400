"""Read and write the board's rows in one compressed file: for each run a JSON line with checksum.

A full record has pictures, curves and attention, some tens of kilobytes; a row has only the numbers.
"""

import gzip
import json
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from posenc.foreign import matches, naming
from posenc.foreign import read as read_bytes
from posenc.lab import store
from posenc.lab.results.summary import Record
from posenc.lab.runs import record
from posenc.lab.sweeps import sweep

FILE = "rows.jsonl.gz"

ROW_FIELDS = (
    "schema", "key", "experiment", "parameters", "versions", "text", "trained_tokens", "steps", "train_cpu_s", "cpu_s",
    "steps_to_learned", "cpu_s_to_learned", "learned", "in_distribution", "lengths",
)  # fmt: skip
"""The fields of a record that a row has: all that summaries read."""

FORM: dict[str, Any] = {name: record.FORM[name] for name in ROW_FIELDS}

DIGITS = 6

MAX_BYTES = 256 << 20
"""The largest size of all rows, decompressed; a hundred seeds of all encodings on all tasks need far less."""


def row_of(full_record: Record) -> Record:
    """Return the row of a full record."""
    row = {name: full_record[name] for name in ROW_FIELDS}
    if row["text"]:
        row["text"] = {name: row["text"][name] for name in ("name", "sha256")}
    row["lengths"] = [{name: value for name, value in entry.items() if value is not None} for entry in row["lengths"]]
    return six_digits(row)


def six_digits(value: Any) -> Any:
    """Return the value with its numbers rounded to six digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: six_digits(inner) for name, inner in value.items()}
    return [six_digits(inner) for inner in value] if isinstance(value, (list, tuple)) else value


TaskFilter: TypeAlias = Callable[[list[str]], Collection[str]]
"""A function that selects tasks from a list of all."""

TASK = re.compile(rb'"task": ("(?:[^"\\]|\\.)*")')


def read(folder: Path, task_filter: TaskFilter | None = None) -> list[Record]:
    """Read the rows of a board and check their checksums and types; without a board there are none.

    task_filter  takes all tasks and returns those whose rows are read; default: all

    Raises CannotRead with file, line and remedy for a damaged row.
    """
    path, rows = folder / FILE, []
    if not path.exists():
        return []
    with naming(path, "put an earlier copy back, or delete it, and posenc board runs all of it again"):
        lines = read_bytes(path, folder=folder, limit=MAX_BYTES).splitlines(keepends=True)
    tasks = [json.loads(match[1]) if (match := TASK.search(line)) else "" for line in lines] if task_filter else []
    wanted_tasks = {"", *task_filter(list(dict.fromkeys(filter(None, tasks))))} if task_filter else set()
    for number, line in enumerate(lines, 1):
        if task_filter and tasks[number - 1] not in wanted_tasks:
            continue
        place = path.with_name(f"{FILE}:{number}")
        with naming(place, "put an earlier copy back, or delete the file, and posenc board runs all of it again"):
            row = store.load_json(line, place)
            matches(row, FORM, file=place)
        rows.append(row)
    return rows


def read_existing(folder: Path, task_filter: TaskFilter | None = None) -> list[Record]:
    """Read the rows of a board as `read` does. Raises ValueError if there are none, and CannotRead."""
    if rows := read(folder, task_filter=task_filter):
        return rows
    raise ValueError(
        f"there is no board in '{folder}': its rows are in the repository, in docs/board; name the folder with --rows, "
        f"or run some with posenc board --out FOLDER"
    )


def add(folder: Path, new_rows: Iterable[Record]) -> None:
    """Add rows to the file of a board, whole or not at all. A row replaces one with the same key.

    The same rows give the same bytes. Raises CannotWrite, and CannotRead if the file is damaged.
    """
    if rows := list(new_rows):
        by_key = {row["key"]: row for row in [*read(folder), *rows]}
        lines = b"".join(store.dump_json(by_key[key]) for key in sorted(by_key))
        store.write(folder / FILE, gzip.compress(lines, mtime=0))


def fold(work: Path, folder: Path) -> int:
    """Move the full records of a working folder into rows and return their number. A damaged one is set aside.

    If it is interrupted, each run is still in a full record, in a row, or in both.
    """
    paths = sorted((work / "records").glob("*.json"))
    new_rows = {path: row_of(full_record) for path in paths if (full_record := sweep.kept_record(path))}
    add(folder, new_rows.values())
    for path in new_rows:
        path.unlink(missing_ok=True)
    return len(new_rows)
