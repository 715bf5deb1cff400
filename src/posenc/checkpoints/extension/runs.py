"""A run: its model, and its folder with what it was asked for and results of finished passes, to go on from."""

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
    """Raises ValueError unless the folder is new, empty, or that of a run with these settings.

    Those of its `alterable` may be others.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"'{out}' is a file; give --out a folder that does not exist yet")
    if all(inside.name == store.LOCK for inside in out.iterdir()):
        return
    if not (out / SETTINGS).exists():
        raise ValueError(f"'{out}' exists and is no run of posenc extend; give --out a folder that does not")
    before = store.read_json(out / SETTINGS)
    now = json.loads(json.dumps(asdict(settings)))
    changes = sorted({name for name in now | before if now.get(name) != before.get(name)} - settings.alterable)
    if changes:
        may = ", ".join(sorted(settings.alterable))
        raise ValueError(
            f"'{out}' holds a run with other settings ({', '.join(changes)}); give --out another folder, or the same "
            f"settings to go on with it ({may} may be others)"
        )


@contextmanager
def claimed(settings: Settings, out: Path, say: Callable[[str], None]) -> Generator["Kept"]:
    """Hold a folder for the run of these settings, and what finished passes have left in it.

    Raises ValueError as `check_folder` does and where another process is at work there.
    """
    check_folder(settings, out)
    with store.held(out):
        check_folder(settings, out)
        store.write(out / SETTINGS, store.sealed(asdict(settings), indent=1))
        yield Kept(out / "measurements.jsonl", say)


class Kept:
    """Results of finished passes, a line of JSON each, by a fingerprint of everything that they depend on.

    say   told of lines that cannot be used; their passes are made again
    """

    def __init__(self, path: Path, say: Callable[[str], None] = lambda words: None) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        unusable = 0
        data = foreign.read(path, most=path.stat().st_size) if path.exists() else b""
        for line in data.splitlines():
            try:
                entry = store.unsealed(line, path)
                foreign.matches(entry, {"key": str, "facts": {"*": Any}, "versions": {"*": Any}, "*": Any}, file=path)
                self.found[entry["key"]] = entry
            except CannotRead:
                unusable += bool(line.strip())
        if unusable:
            say(f"{path}: {unusable} lines are damaged, or of an older version; their passes are made again")
        if self.others:
            say(f"passes are kept from {self.others}; another --out makes them again")

    @property
    def others(self) -> str:
        """In words, what passes were made with that another posenc or torch made; else ""."""
        found = dict.fromkeys(store.other_versions(entry["versions"]) for entry in self.found.values())
        return ", ".join(filter(None, found))

    @staticmethod
    def key(facts: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def __contains__(self, facts: Mapping[str, Any]) -> bool:
        return self.key(facts) in self.found

    def once(self, facts: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result for these facts, made only if it is not kept yet. Raises CannotWrite."""
        key = self.key(facts)
        if key not in self.found:
            found = self.found | {key: {"key": key, "facts": facts, "versions": store.versions(), **make()}}
            store.write(self.path, b"".join(map(store.sealed, found.values())))
            self.found = found
        return self.found[key]


def hash_of(path: Path) -> str:
    """SHA-256 over the names and contents of a checkpoint's files: what is measured depends on them alone.

    Raises CannotRead as `files_of` and `opened` do; pipes and devices that lie there are no files of it.
    """
    wanted = (".safetensors", ".gguf", ".json", ".model", ".txt", ".bin")
    files = [path] if path.is_file() else [file for file in foreign.files_of(path) if file.suffix in wanted]
    digest = hashlib.sha256()
    for file in files:
        with foreign.opened(file) as data:
            digest.update(os.fsencode(file.name) + f"\0{file.stat().st_size}\0".encode())
            while block := data.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
