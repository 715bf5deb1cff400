"""The folder of a run, which continues from its settings and the results of finished passes."""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posenc import foreign
from posenc.checkpoints.extension.settings import Settings
from posenc.foreign import CannotRead
from posenc.lab import store

SETTINGS = "settings.json"


def check_folder(settings: Settings, out: Path) -> None:
    """Raise ValueError unless the folder is new, empty, or of a run with these settings, except `alterable` ones."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"'{out}' is a file; give --out a folder that does not exist yet")
    if all(entry.name == store.LOCK for entry in out.iterdir()):
        return
    if not (out / SETTINGS).exists():
        raise ValueError(f"'{out}' exists and is no run of posenc extend; give --out a folder that does not")
    old = store.read_checked_json(out / SETTINGS)
    new = json.loads(json.dumps(asdict(settings)))
    changes = sorted({name for name in new | old if new.get(name) != old.get(name)} - settings.alterable)
    if changes:
        alterable = ", ".join(sorted(settings.alterable))
        raise ValueError(
            f"'{out}' holds a run with other settings ({', '.join(changes)}); give --out another folder, or the same "
            f"settings to go on with it ({alterable} may be others)"
        )


@contextmanager
def claim_folder(settings: Settings, out: Path, say: Callable[[str], None]) -> Generator["PassResults"]:
    """Lock a folder for the run of these settings, and yield the results of its finished passes.

    Raises ValueError as `check_folder` does, and where another process works there.
    """
    check_folder(settings, out)
    with store.locked_folder(out):
        check_folder(settings, out)
        store.write(out / SETTINGS, store.dump_json(asdict(settings), indent=1))
        yield PassResults(out / "measurements.jsonl", say)


class PassResults:
    """The results of finished passes, a line of JSON each. Each key is a fingerprint of all that it depends on."""

    def __init__(self, path: Path, say: Callable[[str], None] = lambda words: None) -> None:
        self.path = path
        self.entries: dict[str, dict[str, Any]] = {}
        unusable = 0
        data = foreign.read(path, limit=path.stat().st_size) if path.exists() else b""
        for line in data.splitlines():
            try:
                entry = store.load_json(line, path)
                foreign.matches(entry, {"key": str, "facts": {"*": Any}, "versions": {"*": Any}, "*": Any}, file=path)
                self.entries[entry["key"]] = entry
            except CannotRead:
                unusable += bool(line.strip())
        if unusable:
            say(f"{path}: {unusable} lines are damaged, or of an older version; their passes are made again")
        if self.foreign_versions:
            say(f"passes are kept from {self.foreign_versions}; another --out makes them again")

    @property
    def foreign_versions(self) -> str:
        """The other versions of posenc and torch that made some of the passes, in words, or ""."""
        versions = dict.fromkeys(store.version_difference(entry["versions"]) for entry in self.entries.values())
        return ", ".join(filter(None, versions))

    @staticmethod
    def key(facts: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def __contains__(self, facts: Mapping[str, Any]) -> bool:
        return self.key(facts) in self.entries

    def get_or_run(self, facts: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result for these facts, computed only if it is not kept yet. Raises CannotWrite."""
        key = self.key(facts)
        if key not in self.entries:
            entries = self.entries | {key: {"key": key, "facts": facts, "versions": store.versions(), **make()}}
            store.write(self.path, b"".join(map(store.dump_json, entries.values())))
            self.entries = entries
        return self.entries[key]


def hash_checkpoint(path: Path) -> str:
    """Return the SHA-256 of the names and contents of a checkpoint's files, on which all results depend.

    Raises CannotRead as `regular_files` and `open_regular` do; pipes and devices that lie there are no files of it.
    """
    suffixes = (".safetensors", ".gguf", ".json", ".model", ".txt", ".bin")
    files = [path] if path.is_file() else [file for file in foreign.regular_files(path) if file.suffix in suffixes]
    digest = hashlib.sha256()
    for file in files:
        with foreign.open_regular(file) as data:
            digest.update(os.fsencode(file.name) + f"\0{file.stat().st_size}\0".encode())
            while block := data.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
