"""What `posenc list` says, kept beside the code that it was made from: to read it takes no PyTorch."""

import hashlib
import json
from pathlib import Path
from typing import Any

from posenc.lab.description.standard import CELLS, DIM, HEADS, MEASURED_BY, TRAINED_LENGTH

KEPT = Path(__file__).with_suffix(".json")
"""The overview as tests/write_listing.py wrote it, and the digest of what it was made from."""

MADE_FROM = (
    "encodings",
    "schedules",
    "coordinate_maps",
    "lab/tasks",
    "encoding.py",
    "lab/description/describe.py",
    "lab/description/standard.py",
)
"""The folders and files whose change makes another overview."""


def overview() -> dict[str, Any]:
    """Every encoding, schedule, coordinate map, task and kernel: what it is, and of encodings what they cost.

    As it was kept; where the code is another by now, of an encoding that somebody has added, it is made anew.
    """
    kept = read()
    if kept is not None:
        return kept
    from posenc.lab.description import describe

    return describe.overview()


def card(spec: str) -> dict[str, Any]:
    """What is known of one encoding. Raises ValueError as `describe.card` does."""
    for entry in (read() or {"encodings": []})["encodings"]:
        if entry["name"] == spec:
            return entry
    from posenc.lab.description import describe

    return describe.card(spec)


def read() -> dict[str, Any] | None:
    """What was kept, or None where it was made from other code than there is."""
    if not KEPT.is_file():
        return None
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept["overview"] if kept["made_from"] == digest() else None


def digest() -> str:
    """What stands for the code that an overview is made from."""
    home, found = Path(__file__).parents[2], hashlib.sha256()
    for part in MADE_FROM:
        for file in sorted((home / part).glob("*.py")) if (home / part).is_dir() else [home / part]:
            found.update(file.name.encode() + b"\0" + file.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return found.hexdigest()


def in_words(entry: dict[str, Any]) -> list[str]:
    """What `posenc list` says of an encoding, a line for each thing."""
    if entry["problem"]:
        return [entry["problem"]]
    lines = [
        entry["idea"],
        f"{entry['parameters']:,} parameters per {entry['per']}; cache: {entry['cache']['words']}; "
        f"kernels: {', '.join(entry['kernels'])}; axes: {entry['axes']}",
    ]
    named = {
        "options": ", ".join(entry["options"]),
        "beyond training": entry["extrapolates"],
        "measured": entry["measured"],
        "used by": entry["used_by"],
    }
    return lines + [f"{name}: {words}" for name, words in named.items() if words]


def card_in_words(card: dict[str, Any]) -> list[list[str]]:
    """Everything that is known of an encoding, as rows of what and words."""
    counted = f"{card['parameters']:,} per {card['per']}"
    rows = {
        "class": card["class"],
        "also called": ", ".join(card["also_called"]),
        "idea": card["idea"],
        "does": f"{card['group'].lower()}; opens {', '.join(card['doors']) or 'no door'}",
        "options": ", ".join(f"{name}={default}" for name, default in card["options"].items()),
        "parameters": f"{counted}, at dim {DIM}, {HEADS} heads, trained length {TRAINED_LENGTH}"
        + (f" ({CELLS} cells on each axis)" if isinstance(card["axes"], int) and card["axes"] > 1 else ""),
        "KV cache": card["cache"]["words"],
        "kernels": ", ".join(card["kernels"]),
        "axes": str(card["axes"]),
        "beyond the trained length": card["extrapolates"],
        "measured here": f"{card['measured']} ({MEASURED_BY})" if card["measured"] else "not yet",
        "used by": card["used_by"] or "no released model that we know of",
        "source": card["source"],
    }
    return [[name, words] for name, words in rows.items() if words]
