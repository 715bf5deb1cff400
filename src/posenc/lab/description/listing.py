"""What `posenc list` says, made at its first use and kept in the user's cache: to read it takes no PyTorch."""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from posenc import __version__
from posenc.foreign import near, quoted
from posenc.foreign.whole_files import users_cache
from posenc.specs import plugins, spelling

DIM, HEADS, TRAINED_LENGTH, CELLS = 512, 8, 2048, 32
"""The model that encodings are counted for; those of several axes have CELLS cells on each."""

MEASURED_BY = "the board: small models of two layers, docs/board"

MADE_FROM = (
    "encodings", "schedules", "coordinate_maps", "kernels", "lab/published", "lab/tasks", "encoding/base.py",
    "specs/presets.py",
    "lab/description/describe.py", "lab/description/listing.py", "lab/board/committed/rows.jsonl.gz",
    "../../docs/board/rows.jsonl.gz",
)  # fmt: skip
"""The folders and files whose change makes another overview; the rows of the board lie in one of two places."""

MOST_KEPT = 8
"""Overviews of other versions and other code that stay in the cache."""

KINDS = {
    "encodings": "encoding",
    "schedules": "schedule",
    "coordinate_maps": "coordinate map",
    "tasks": "task",
    "kernels": "kernel",
    "presets": "preset",
    "claims": "claim",
}
"""What an overview lists -> how one of them is called."""

USED = {
    "schedule": "rotary(schedule={}(...)) in a spec",
    "coordinate map": 'posenc train --map "{}(...)"',
    "task": "posenc compare --tasks {}",
    "kernel": 'Attention(..., kernel="{}")',
    "preset": 'posenc.preset("{}")',
    "claim": "posenc lab run {}",
}
"""Where the name of each kind is written."""

DOORS = {
    "embed": {"embed"},
    "turn": {"turn"},
    "bias": {"by_distance", "biases"},
    "attend": {"attend"},
    "remember": {"remember"},
}
"""How a person calls a door -> the methods that open it."""


def overview() -> dict[str, Any]:
    """Every encoding, and all that goes with them: what it is, and of encodings what they cost.

    Read from the cache; made anew, which takes PyTorch, where there is none of this code, and kept for the next time.
    """
    path = kept_in()
    if (kept := read(path)) is not None:
        return kept
    from posenc.lab.description import describe

    text = json.dumps(describe.overview()).encode()
    listing = json.loads(text)
    # A problem may be the environment's, and gone the next time.
    if path is not None and not any(entry.get("problem") for entry in listing["encodings"]):
        keep(path, text)
    return listing


def installed() -> list[dict[str, Any]]:
    """The plug-ins of this environment, without running their code: name, kind, package, and why one is not used."""
    found, known = [], overview()
    for group, kind in plugins.GROUPS.items():
        ships = {entry["name"] for entry in known[f"{kind.replace(' ', '_')}s"]}
        for name, plugin in plugins.plugins_in(group).items():
            problem = f"not used: posenc has {kind} {name} itself" if name in ships else plugin.problem
            found.append({"name": name, "kind": kind, "package": plugin.package, "problem": problem})
    return found


def card_of_plugin(entry: dict[str, Any]) -> dict[str, Any]:
    """What is known of a plug-in, whose code is run. Raises ValueError where it cannot be used."""
    from posenc import catalogue, coordinate_maps, schedules
    from posenc.lab import tasks
    from posenc.lab.description import describe

    if entry["kind"] == "encoding":
        return describe.card(entry["name"]) | {"package": entry["package"], "also": []}
    registries = (catalogue.ENCODINGS, schedules.SCHEDULES, coordinate_maps.COORDINATE_MAPS, tasks.TASKS)
    registry = next(one for one in registries if one.word == entry["kind"])
    told = describe.told_of(entry["name"], registry.find(entry["name"]))
    return {"kind": entry["kind"], **told, "package": entry["package"], "also": []}


def card(name: str) -> dict[str, Any]:
    """What is known of a name, or of an encoding as a spec: `kind` says what it is, `also` holds others of that name.

    Raises ValueError for a name that nothing has, and as `describe.card` does.
    """
    found = overview()
    cards = [
        {"kind": word, **entry, "also": []}
        for kind, word in KINDS.items()
        for entry in found[kind]
        if entry["name"] == name
    ]
    if cards and cards[0].get("problem"):
        raise ValueError(cards[0]["problem"])
    if cards:
        return cards[0] | {"also": cards[1:]}
    for entry in installed():
        if entry["name"] == name:
            return card_of_plugin(entry)
    if re.fullmatch(r"[\w.-]+", name):
        called = {one["name"]: one["name"] for one in installed()}
        called |= {other: one["name"] for kind in KINDS for one in found[kind] for other in one.get("also_called", ())}
        called |= {one["name"]: one["name"] for kind in KINDS for one in found[kind]} | {kind: kind for kind in KINDS}
        raise ValueError(f"nothing is named {quoted(name)}{near(name, called, 'posenc list')}")
    spelling.check(name)
    from posenc.lab.description import describe

    return describe.card(name) | {"also": []}


def kept_in() -> Path | None:
    """The file that keeps the overview of this code in the user's cache; None where no home folder is known."""
    with suppress(RuntimeError):
        return users_cache() / f"listing-{digest()}.json"
    return None


def read(path: Path | None) -> dict[str, Any] | None:
    """What was kept in a file, below a line with its SHA-256; None where there is none, or it is damaged."""
    with suppress(OSError):
        checksum, _, text = path.read_bytes().partition(b"\n") if path else (b"", b"", b"")
        if hashlib.sha256(text).hexdigest().encode() == checksum:
            return json.loads(text)
    return None


def keep(path: Path, text: bytes) -> None:
    """Write an overview into the cache, whole, and remove the oldest of other code; where it cannot be, do without."""
    from posenc.lab import store

    with suppress(OSError):
        store.write(path, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        for old in sorted(path.parent.glob("listing-*.json"), key=lambda file: file.stat().st_mtime)[:-MOST_KEPT]:
            old.unlink(missing_ok=True)


def digest() -> str:
    """What stands for the version and the code that an overview is made from."""
    home, sha = Path(__file__).parents[2], hashlib.sha256(__version__.encode())
    for part in map(home.joinpath, MADE_FROM):
        for file in sorted(part.rglob("*.py")) if part.is_dir() else [part] * part.is_file():
            sha.update(file.name.encode() + b"\0" + file.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return sha.hexdigest()


def chosen(entries: Sequence[dict[str, Any]], *, axes: int | None, door: str, used_by: str) -> list[dict[str, Any]]:
    """The encodings that read positions of so many axes, open a door, and are used by models of such a name.

    What is None or empty leaves all. Raises ValueError, with what there would be, where nothing is left.
    """
    if door and door not in DOORS:
        raise ValueError(f"no door named {quoted(door)}; there are: {', '.join(DOORS)}{near(door, DOORS.keys())}")
    asked = {
        f"--axes {axes}": lambda entry: axes is None or entry.get("axes") in ((axes, "any") if axes > 0 else ()),
        f"--door {door}": lambda entry: not door or DOORS[door] & set(entry.get("doors", ())),
        f"--used-by {quoted(used_by)}": lambda entry: used_by.lower() in entry.get("used_by", "").lower(),
    }
    left = [entry for entry in entries if all(fits(entry) for fits in asked.values())]
    if left:
        return left
    alone = {name: sum(map(bool, map(fits, entries))) for name, fits in asked.items()}
    said = [f"{name} alone leaves {many}" for name, many in alone.items() if many < len(entries)]
    there = sorted({str(entry["axes"]) for entry in entries if "axes" in entry})
    if alone[f"--axes {axes}"] == 0:
        said.append(f"there are encodings of {', '.join(there)} axes")
    if alone[f"--used-by {quoted(used_by)}"] == 0:
        users = {user for entry in entries for user in re.findall(r"[A-Za-z][\w.-]+", entry.get("used_by", ""))}
        said.append(f"models are named as in their papers, such as Llama or BERT{near(used_by, users)}")
    raise ValueError(f"no encoding is left; {'; '.join(said)}")


def groups_of(found: dict[str, Any], entries: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Encodings by what they do: title, and of each its name and what a line says of it."""
    titles = dict.fromkeys([*found["groups"], *(entry["group"] for entry in entries)])
    groups = [(title, [lined(entry) for entry in entries if entry["group"] == title]) for title in titles]
    return [(title, lines) for title, lines in groups if lines]


def lined(entry: dict[str, Any]) -> tuple[str, str]:
    """The name of an encoding, or of what goes with it, and what a line says of it, the most important first."""
    if entry.get("problem"):
        return entry["name"], entry["problem"]
    said = [entry["idea"].rstrip("."), entry.get("used_by") and f"used by {entry['used_by']}"]
    return entry["name"], "; ".join(filter(None, said))


def card_in_words(card: dict[str, Any]) -> list[list[str]]:
    """Everything that is known of a name, as rows of what and words; how it works stands in its lesson."""
    options = ", ".join(f"{name}={default}" for name, default in card["options"].items())
    rows = {"also called": ", ".join(card["also_called"]), "idea": card["idea"], "options": options}
    rows |= {"plug-in of": card.get("package", "")}
    rows |= (
        encoding_in_words(card) if card["kind"] == "encoding" else {"used as": USED[card["kind"]].format(card["name"])}
    )
    return [[name, words] for name, words in rows.items() if words]


def encoding_in_words(card: dict[str, Any]) -> dict[str, str]:
    """What is known of an encoding alone."""
    counted = f"{card['parameters']:,} per {card['per']}"
    return {
        "class": card["class"],
        "does": f"{card['group'].lower()}; opens {', '.join(card['doors']) or 'no door'}",
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
