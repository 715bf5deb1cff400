"""Rows: what the board keeps of each run, a sealed line of JSON, sorted by key, all in one compressed file.

A full record holds pictures, curves and attention, some tens of kilobytes; of thousands of runs the numbers are enough.
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

KEPT = (
    "schema", "key", "experiment", "parameters", "versions", "text", "trained_tokens", "steps", "train_cpu_s", "cpu_s",
    "steps_to_learned", "cpu_s_to_learned", "learned", "in_distribution", "lengths",
)  # fmt: skip
"""What a row has of a record. All that summaries read is in it, so they read rows as they read records."""

FORM: dict[str, Any] = {name: record.FORM[name] for name in KEPT}

DIGITS = 6

MOST_BYTES = 256 << 20
"""The size of all rows, decompressed: far more than those of every encoding on every task and a hundred seeds."""


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


Choice: TypeAlias = Callable[[list[str]], Collection[str]]
"""Of all tasks, those of which rows are wanted."""

TASK = re.compile(rb'"task": ("(?:[^"\\]|\\.)*")')


def read(folder: Path, chosen: Choice | None = None) -> list[Record]:
    """The rows of a board, each held to its checksum and form; none where there is no board yet.

    chosen   takes all tasks and gives those whose rows are read; default: all

    Raises CannotRead, naming file, line and remedy, for one that is damaged.
    """
    path, rows = folder / FILE, []
    if not path.exists():
        return []
    with naming(path, "put an earlier copy back, or delete it, and posenc board runs all of it again"):
        lines = read_bytes(path, within=folder, most=MOST_BYTES).splitlines(keepends=True)
    tasks = [json.loads(found[1]) if (found := TASK.search(line)) else "" for line in lines] if chosen else []
    wanted = {"", *chosen(list(dict.fromkeys(filter(None, tasks))))} if chosen else set()
    for number, line in enumerate(lines, 1):
        if chosen and tasks[number - 1] not in wanted:
            continue
        place = path.with_name(f"{FILE}:{number}")
        with naming(place, "put an earlier copy back, or delete the file, and posenc board runs all of it again"):
            row = store.unsealed(line, place)
            matches(row, FORM, file=place)
        rows.append(row)
    return rows


def there(folder: Path, chosen: Choice | None = None) -> list[Record]:
    """The rows of a board, as `read` has them. Raises ValueError where there are none, and CannotRead."""
    if found := read(folder, chosen=chosen):
        return found
    raise ValueError(
        f"there is no board in '{folder}': its rows are in the repository, in docs/board; name the folder with --rows, "
        f"or run some with posenc board --out FOLDER"
    )


def add(folder: Path, new: Iterable[Record]) -> None:
    """Put rows into the file of a board, whole or not at all; a row with a key that is there replaces it.

    The same rows make the same file. Raises CannotWrite, and CannotRead where the file is damaged.
    """
    if rows := list(new):
        kept = {row["key"]: row for row in [*read(folder), *rows]}
        lines = b"".join(store.sealed(kept[key]) for key in sorted(kept))
        store.write(folder / FILE, gzip.compress(lines, mtime=0))


def fold(work: Path, folder: Path) -> int:
    """Move all full records of a working folder into rows, and say how many; a damaged one is set aside.

    Whenever it is killed, a run is in a full record or in a row, and at worst in both.
    """
    paths = sorted((work / "records").glob("*.json"))
    found = {path: row_of(full) for path in paths if (full := sweep.kept_record(path))}
    add(folder, found.values())
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)
