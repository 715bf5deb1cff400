"""Shards: a comparison in so many parts, each run by a command of its own, and their records put together."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from posenc.foreign import CannotRead, quoted
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
    """Part `number` of `count`, counted from 0: each count-th run. The longest come first, so all take as long.

    >>> Shard.of("1/3").part(["a", "b", "c", "d", "e"])
    ['b', 'e']
    """

    number: int
    count: int

    @classmethod
    def of(cls, words: str) -> "Shard":
        """The shard that is written as NUMBER/COUNT. Raises ValueError for anything else."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", words)
        if not found or int(found[1]) >= int(found[2]):
            raise ValueError(
                f"--shard is NUMBER/COUNT, counted from 0: of four shards 0/4, 1/4, 2/4 and 3/4; got {quoted(words)}"
            )
        return cls(int(found[1]), int(found[2]))

    def part(self, runs: Sequence) -> list:
        """Its share of the runs."""
        return list(runs[self.number :: self.count])


def run_shard(
    settings: Settings,
    shard: Shard,
    out: Path,
    *,
    log: Sequence[str] = (),
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> tuple[Sweep, Path]:
    """Run what is missing of a shard in a folder of its own, which nobody else writes to: (the sweep, the folder).

    What has a record in `out` already is not run again. log is as in `compare`.

    Raises ValueError for settings that need the records of all runs, and as `compare` does.
    """
    if settings.rates:
        raise ValueError("--rates looks at the records of all runs, and a shard has its own; leave one of them out")
    loggers_of(log)
    folder = out / f"shard-{shard.number}-of-{shard.count}"
    runs: list[Experiment] = shard.part(settings.experiments())
    with store.held(folder):
        write_settings(settings, folder)
        missing = [run for run in runs if not record.file_of(out, record.key_of(run)).exists()]
        return run_all(missing, folder, log=log, show=show), folder


@dataclass
class Merged:
    """What came of putting folders together: how many records were new and already there, what could not be read."""

    new: int = 0
    there: int = 0
    damaged: list[str] = field(default_factory=list)


def merge(folders: Sequence[Path], out: Path) -> Merged:
    """Copy the records of some folders, or of the shards in them, into one, each whole or not at all.

    What is there already stays as it is, and so do the folders. Failures are copied too, of runs that have no record.
    A second call adds what is new.

    Raises ValueError for folders without records or of other settings, InUse where another process is at work.
    """
    done = Merged()
    folders = [shard for folder in folders for shard in shards_in(folder, again=folder == out)]
    with ExitStack() as stack:
        for folder in dict.fromkeys([out, *folders]):
            stack.enter_context(store.held(folder))
        settings = the_same_settings([*folders, out])
        if settings is not None:
            store.write(out / SETTINGS, settings)
        for folder in folders:
            for path in sorted((folder / "records").glob("*.json")):
                copy(path, out, done)
            for path in sorted((folder / "records").glob("*.failed")):
                target = out / "records" / path.name
                if not target.with_suffix(".json").exists():
                    store.write(target, read_bytes(path, within=path.parent))
    return done


def shards_in(folder: Path, *, again: bool) -> list[Path]:
    """The folders with records that a folder stands for: itself, or the shards in it. Raises ValueError for none.

    again  whether its own records are those of its shards, put together by an earlier call
    """
    shards = sorted(records.parent for records in folder.glob("shard-*-of-*/records"))
    if (folder / "records").is_dir() and not (again and shards):
        return [folder]
    if not shards:
        raise ValueError(f"no records in '{folder}'; make some with posenc compare --shard, or leave it out")
    return shards


def copy(path: Path, out: Path, done: Merged) -> None:
    target = out / "records" / path.name
    if target.exists():
        done.there += 1
        return
    try:
        record.read(path)
    except CannotRead as error:
        done.damaged.append(str(error))
        return
    store.write(target, read_bytes(path, within=path.parent))
    record.forget_failure(target.parent, path.stem)
    done.new += 1


def the_same_settings(folders: Sequence[Path]) -> bytes | None:
    """The settings of folders as they are written, where all that have some have the same. Raises ValueError."""
    found = {read_bytes(path, within=path.parent): folder for folder in folders if (path := folder / SETTINGS).exists()}
    if len(found) > 1:
        one, other, *_ = found.values()
        raise ValueError(f"'{one}' and '{other}' were made with other settings; put each together with its own")
    return next(iter(found), None)
