"""Shards of a comparison, each run by its own command, and the merge of their records."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from posenc.foreign import CannotRead, quote
from posenc.foreign import read as read_bytes
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.loggers import loggers_of
from posenc.lab.runs import record
from posenc.lab.runs.settings import Settings, write_settings
from posenc.lab.sweeps.sweep import Sweep, run_all

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, counted from 0: every count-th run, for balance, as runs are sorted by cost.

    >>> Shard.parse("1/3").part(["a", "b", "c", "d", "e"])
    ['b', 'e']
    """

    number: int
    count: int

    @classmethod
    def parse(cls, words: str) -> "Shard":
        """Parse NUMBER/COUNT. Raises ValueError for anything else."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", words)
        if not match or int(match[1]) >= int(match[2]):
            raise ValueError(
                f"--shard is NUMBER/COUNT, counted from 0: of four shards 0/4, 1/4, 2/4 and 3/4; got {quote(words)}"
            )
        return cls(int(match[1]), int(match[2]))

    def part(self, runs: Sequence) -> list:
        """The runs of this shard."""
        return list(runs[self.number :: self.count])


def run_shard(
    settings: Settings,
    shard: Shard,
    out: Path,
    *,
    log: Sequence[str] = (),
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> tuple[Sweep, Path]:
    """Train a shard's missing runs in its own folder; return (the sweep, the folder).

    A run with a record in `out` is not repeated. log is as in `compare`.

    Raises ValueError for settings that need the records of all runs, and as `compare` does.
    """
    if settings.rates:
        raise ValueError("--rates looks at the records of all runs, and a shard has its own; leave one of them out")
    loggers_of(log)
    folder = out / f"shard-{shard.number}-of-{shard.count}"
    runs: list[Experiment] = shard.part(settings.experiments())
    with store.locked_folder(folder):
        write_settings(settings, folder)
        missing_runs = [run for run in runs if not record.record_path(out, record.key_of(run)).exists()]
        return run_all(missing_runs, folder, log=log, show=show), folder


@dataclass
class MergeResult:
    """A merge's counts of new and existing records, and the errors of records that cannot be read."""

    new: int = 0
    existing: int = 0
    read_errors: list[str] = field(default_factory=list)


def merge(folders: Sequence[Path], out: Path) -> MergeResult:
    """Copy the records of folders, or of the shards in them, into one folder, each atomically.

    Existing records and the source folders stay as they are. Failures of runs without a record are copied too. A second
    call adds new records.

    Raises ValueError for folders without records or with other settings, InUse where another process has the lock.
    """
    result = MergeResult()
    folders = [shard for folder in folders for shard in shards_in(folder, again=folder == out)]
    with ExitStack() as stack:
        for folder in dict.fromkeys([out, *folders]):
            stack.enter_context(store.locked_folder(folder))
        settings = common_settings([*folders, out])
        if settings is not None:
            store.write(out / SETTINGS, settings)
        for folder in folders:
            for path in sorted((folder / "records").glob("*.json")):
                copy_record(path, out, result)
            for path in sorted((folder / "records").glob("*.failed")):
                target = out / "records" / path.name
                if not target.with_suffix(".json").exists():
                    store.write(target, read_bytes(path, folder=path.parent))
    return result


def shards_in(folder: Path, *, again: bool) -> list[Path]:
    """The record folders of a folder: itself, or the shards in it. Raises ValueError where there are none.

    again  whether its own records come from an earlier merge of its shards
    """
    shards = sorted(records.parent for records in folder.glob("shard-*-of-*/records"))
    if (folder / "records").is_dir() and not (again and shards):
        return [folder]
    if not shards:
        raise ValueError(f"no records in '{folder}'; make some with posenc compare --shard, or leave it out")
    return shards


def copy_record(path: Path, out: Path, result: MergeResult) -> None:
    target = out / "records" / path.name
    if target.exists():
        result.existing += 1
        return
    try:
        record.read(path)
    except CannotRead as error:
        result.read_errors.append(str(error))
        return
    store.write(target, read_bytes(path, folder=path.parent))
    record.forget_failure(target.parent, path.stem)
    result.new += 1


def common_settings(folders: Sequence[Path]) -> bytes | None:
    """The common settings file of the folders, or None. Raises ValueError where settings differ."""
    owner = {read_bytes(path, folder=path.parent): folder for folder in folders if (path := folder / SETTINGS).exists()}
    if len(owner) > 1:
        first, second, *_ = owner.values()
        raise ValueError(f"'{first}' and '{second}' were made with other settings; put each together with its own")
    return next(iter(owner), None)
