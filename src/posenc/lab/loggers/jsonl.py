"""A file of JSON lines."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.lab.loggers._logger import Logger


@dataclass(kw_only=True, eq=False)
class JsonLines(Logger):
    """Append a line to log.jsonl in the folder of the run for each event, immediately.

    {"experiment": {...}}, then {"step": 50, "loss": 1.2, ...} for each point, then {"learned": true, "lengths": [...]}

    A run that resumes a checkpoint appends to the same file. A number that is not finite is null.

    Source: jsonlines.org.
    """

    def begin(self, experiment: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "log.jsonl"
        self.write({"experiment": dict(experiment)})

    def point(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self.write({"step": step} | finite)

    def sample(self, step: int, prompt: str, text: str) -> None:
        self.write({"step": step, "prompt": prompt, "text": text})

    def end(self, record: Mapping[str, Any]) -> None:
        self.write({name: record[name] for name in ("learned", "lengths")})

    def write(self, line: dict[str, Any]) -> None:
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
