"""Writes src/posenc/explorer/example.json: what was trained, for pages that are asked for no run.

posenc compare --out runs/example
.venv/bin/python tests/write_explorer_example.py runs/example
"""

import json
import sys
from pathlib import Path
from typing import Any

from posenc.explorer import training_results
from posenc.lab.views.page import jsonable

COMMAND = "posenc compare"


def text(run: Path) -> str:
    """The text of the file."""
    return json.dumps(jsonable(example_data(run)), separators=(",", ":")) + "\n"


def example_data(run: Path) -> dict[str, Any]:
    data = training_results.read_run(run)
    data["sections"]["run"]["provenance"] = f"{COMMAND}, {data['sections']['run']['made']}"
    return data


if __name__ == "__main__":
    training_results.EXAMPLE.write_text(text(Path(sys.argv[1])), encoding="utf-8")
