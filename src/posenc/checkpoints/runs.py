"""The folder of a run: what it was asked for, and results of finished passes, so that it goes on where it stopped."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posenc.lab.plots import write_whole


def check_folder(settings: Any, out: Path) -> None:
    """Raises ValueError unless the folder is new, empty, or that of a run with these settings, a dataclass."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"'{out}' is a file; give --out a folder that does not exist yet")
    if not any(out.iterdir()):
        return
    try:
        held = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"'{out}' exists and is no run of posenc extend; give --out a folder that does not") from None
    asked = json.loads(json.dumps(asdict(settings)))
    other = sorted(name for name in asked | held if asked.get(name) != held.get(name))
    if other:
        raise ValueError(
            f"'{out}' holds a run with other settings ({', '.join(other)}); give --out another folder, or the same "
            f"settings to go on with it"
        )


def claim_folder(settings: Any, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "settings.json", (json.dumps(asdict(settings), indent=1) + "\n").encode())


class Kept:
    """Results of finished passes, a line of JSON each, by a fingerprint of everything that they depend on."""

    def __init__(self, path: Path) -> None:
        self.path, self.found = path, {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                entry = json.loads(line)
            except ValueError:
                # A run that was killed while it wrote leaves half a line.
                continue
            self.found[entry["key"]] = entry

    @staticmethod
    def key(facts: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def __contains__(self, facts: Mapping[str, Any]) -> bool:
        return self.key(facts) in self.found

    def once(self, facts: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result for these facts, made only if it is not kept yet."""
        key = self.key(facts)
        if key not in self.found:
            entry = {"key": key, "facts": facts, **make()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                # The first newline ends a line that was cut.
                file.write("\n" * (file.tell() > 0) + json.dumps(entry))
                file.flush()
                os.fsync(file.fileno())
            self.found[key] = entry
        return self.found[key]


def hash_of(path: Path) -> str:
    """SHA-256 over the names and contents of a checkpoint's files: what is measured depends on them alone."""
    wanted = (".safetensors", ".gguf", ".json", ".model", ".txt", ".bin")
    files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.suffix in wanted]
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
