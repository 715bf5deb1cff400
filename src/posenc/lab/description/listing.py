"""The data of `posenc list`, built on first use and cached for the user. Reading them needs no PyTorch."""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from posenc import __version__
from posenc.foreign import quote, suggestion
from posenc.foreign.whole_files import users_cache
from posenc.specs import plugins, spelling

DIM, HEADS, TRAINED_LENGTH, CELLS = 512, 8, 2048, 32
"""The model whose parameters are counted; encodings of several axes have CELLS cells on each."""

MEASURED_BY = "the board: small models of two layers, docs/board"

MADE_FROM = (
    "encodings", "schedules", "coordinate_maps", "kernels", "lab/published", "lab/tasks", "encoding/base.py",
    "specs/presets.py",
    "lab/description/describe.py", "lab/description/listing.py", "lab/board/committed/rows.jsonl.gz",
    "../../docs/board/rows.jsonl.gz",
)  # fmt: skip
"""The folders and files that the overview depends on; the rows of the board lie in one of two places."""

MOST_CACHED = 8
"""The most overviews in the cache, of this and other versions of the code."""

KINDS = {
    "encodings": "encoding",
    "schedules": "schedule",
    "coordinate_maps": "coordinate map",
    "tasks": "task",
    "kernels": "kernel",
    "presets": "preset",
    "claims": "claim",
}
"""The keys of an overview -> the word for one entry."""

USAGE = {
    "schedule": "rotary(schedule={}(...)) in a spec",
    "coordinate map": 'posenc train --map "{}(...)"',
    "task": "posenc compare --tasks {}",
    "kernel": 'Attention(..., kernel="{}")',
    "preset": 'posenc.preset("{}")',
    "claim": "posenc lab run {}",
}
"""How a name of each kind is used."""

DOORS = {
    "embed": {"embed"},
    "turn": {"turn"},
    "bias": {"by_distance", "biases"},
    "attend": {"attend"},
    "remember": {"remember"},
}
"""Door, as a user names it -> its methods."""


def load_overview() -> dict[str, Any]:
    """The overview of all names, from the cache; else built, which needs PyTorch, and cached."""
    path = cache_file()
    if (cached_overview := read_cache(path)) is not None:
        return cached_overview
    from posenc.lab.description import describe

    text = json.dumps(describe.build_overview()).encode()
    listing = json.loads(text)
    # A problem may come from the environment and vanish, so it is not cached.
    if path is not None and not any(entry.get("problem") for entry in listing["encodings"]):
        write_cache(path, text)
    return listing


def installed_plugins() -> list[dict[str, Any]]:
    """The installed plug-ins, without running their code: name, kind, package, and a problem if one is not used."""
    rows, listing = [], load_overview()
    for group, kind in plugins.GROUPS.items():
        ships = {entry["name"] for entry in listing[f"{kind.replace(' ', '_')}s"]}
        for name, plugin in plugins.plugins_in(group).items():
            problem = f"not used: posenc has {kind} {name} itself" if name in ships else plugin.problem
            rows.append({"name": name, "kind": kind, "package": plugin.package, "problem": problem})
    return rows


def plugin_card(entry: dict[str, Any]) -> dict[str, Any]:
    """The card of a plug-in, whose code is run. Raises ValueError where it cannot be used."""
    from posenc import catalogue, coordinate_maps, schedules
    from posenc.lab import tasks
    from posenc.lab.description import describe

    if entry["kind"] == "encoding":
        return describe.encoding_card(entry["name"]) | {"package": entry["package"], "also": []}
    registries = (catalogue.ENCODINGS, schedules.SCHEDULES, coordinate_maps.COORDINATE_MAPS, tasks.TASKS)
    registry = next(candidate for candidate in registries if candidate.word == entry["kind"])
    description = describe.thing_card(entry["name"], registry.find(entry["name"]))
    return {"kind": entry["kind"], **description, "package": entry["package"], "also": []}


def card(name: str) -> dict[str, Any]:
    """Return the card of a name, or of an encoding's spec, with its `kind`. `also` has the other cards of that name.

    Raises ValueError for an unknown name, and as `describe.encoding_card` does.
    """
    listing = load_overview()
    cards = [
        {"kind": word, **entry, "also": []}
        for kind, word in KINDS.items()
        for entry in listing[kind]
        if entry["name"] == name
    ]
    if cards and cards[0].get("problem"):
        raise ValueError(cards[0]["problem"])
    if cards:
        return cards[0] | {"also": cards[1:]}
    for entry in installed_plugins():
        if entry["name"] == name:
            return plugin_card(entry)
    if re.fullmatch(r"[\w.-]+", name):
        suggestions = {e["name"]: e["name"] for e in installed_plugins()}
        suggestions |= {alias: e["name"] for kind in KINDS for e in listing[kind] for alias in e.get("also_called", ())}
        suggestions |= {e["name"]: e["name"] for kind in KINDS for e in listing[kind]} | {kind: kind for kind in KINDS}
        raise ValueError(f"nothing is named {quote(name)}{suggestion(name, suggestions, 'posenc list')}")
    spelling.check(name)
    from posenc.lab.description import describe

    return describe.encoding_card(name) | {"also": []}


def cache_file() -> Path | None:
    """The cache file of this code's overview; None where there is no home folder."""
    with suppress(RuntimeError):
        return users_cache() / f"listing-{code_digest()}.json"
    return None


def read_cache(path: Path | None) -> dict[str, Any] | None:
    """Read a cache file, whose first line is the SHA-256; None where it is missing or damaged."""
    with suppress(OSError):
        checksum, _, text = path.read_bytes().partition(b"\n") if path else (b"", b"", b"")
        if hashlib.sha256(text).hexdigest().encode() == checksum:
            return json.loads(text)
    return None


def write_cache(path: Path, text: bytes) -> None:
    """Write an overview into the cache and remove the oldest ones; ignore OSError."""
    from posenc.lab import store

    with suppress(OSError):
        store.write(path, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        for old in sorted(path.parent.glob("listing-*.json"), key=lambda file: file.stat().st_mtime)[:-MOST_CACHED]:
            old.unlink(missing_ok=True)


def code_digest() -> str:
    """A SHA-256 of the version and the code that the overview depends on."""
    home, sha = Path(__file__).parents[2], hashlib.sha256(__version__.encode())
    for part in map(home.joinpath, MADE_FROM):
        for file in sorted(part.rglob("*.py")) if part.is_dir() else [part] * part.is_file():
            sha.update(file.name.encode() + b"\0" + file.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return sha.hexdigest()


def select(entries: Sequence[dict[str, Any]], *, axes: int | None, door: str, used_by: str) -> list[dict[str, Any]]:
    """Return the encodings that read `axes` axes, have a door, and are used by a model. None or "" is no filter.

    Raises ValueError, with what each filter alone leaves, where nothing is left.
    """
    if door and door not in DOORS:
        raise ValueError(f"no door named {quote(door)}; there are: {', '.join(DOORS)}{suggestion(door, DOORS.keys())}")
    filters = {
        f"--axes {axes}": lambda entry: axes is None or entry.get("axes") in ((axes, "any") if axes > 0 else ()),
        f"--door {door}": lambda entry: not door or DOORS[door] & set(entry.get("doors", ())),
        f"--used-by {quote(used_by)}": lambda entry: used_by.lower() in entry.get("used_by", "").lower(),
    }
    matches = [entry for entry in entries if all(fits(entry) for fits in filters.values())]
    if matches:
        return matches
    counts = {name: sum(map(bool, map(fits, entries))) for name, fits in filters.items()}
    reasons = [f"{name} alone leaves {count}" for name, count in counts.items() if count < len(entries)]
    axes_available = sorted({str(entry["axes"]) for entry in entries if "axes" in entry})
    if counts[f"--axes {axes}"] == 0:
        reasons.append(f"there are encodings of {', '.join(axes_available)} axes")
    if counts[f"--used-by {quote(used_by)}"] == 0:
        users = {user for entry in entries for user in re.findall(r"[A-Za-z][\w.-]+", entry.get("used_by", ""))}
        reasons.append(f"models are named as in their papers, such as Llama or BERT{suggestion(used_by, users)}")
    raise ValueError(f"no encoding is left; {'; '.join(reasons)}")


def by_group(listing: dict[str, Any], entries: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The encodings by group: title, and the name and the line of each."""
    titles = dict.fromkeys([*listing["groups"], *(entry["group"] for entry in entries)])
    groups = [(title, [listing_line(entry) for entry in entries if entry["group"] == title]) for title in titles]
    return [(title, lines) for title, lines in groups if lines]


def listing_line(entry: dict[str, Any]) -> tuple[str, str]:
    """The name of an entry and its line in a list, the most important first."""
    if entry.get("problem"):
        return entry["name"], entry["problem"]
    parts = [entry["idea"].rstrip("."), entry.get("used_by") and f"used by {entry['used_by']}"]
    return entry["name"], "; ".join(filter(None, parts))


def card_rows(card: dict[str, Any]) -> list[list[str]]:
    """A card as rows (heading, text), without its lesson."""
    options = ", ".join(f"{name}={default}" for name, default in card["options"].items())
    rows = {"also called": ", ".join(card["also_called"]), "idea": card["idea"], "options": options}
    rows |= {"plug-in of": card.get("package", "")}
    rows |= encoding_rows(card) if card["kind"] == "encoding" else {"used as": USAGE[card["kind"]].format(card["name"])}
    return [[name, words] for name, words in rows.items() if words]


def encoding_rows(card: dict[str, Any]) -> dict[str, str]:
    """The rows of a card that only encodings have."""
    parameters = f"{card['parameters']:,} per {card['per']}"
    return {
        "class": card["class"],
        "does": f"{card['group'].lower()}; opens {', '.join(card['doors']) or 'no door'}",
        "parameters": f"{parameters}, at dim {DIM}, {HEADS} heads, trained length {TRAINED_LENGTH}"
        + (f" ({CELLS} cells on each axis)" if isinstance(card["axes"], int) and card["axes"] > 1 else ""),
        "KV cache": card["cache"]["words"],
        "kernels": ", ".join(card["kernels"]),
        "axes": str(card["axes"]),
        "beyond the trained length": card["extrapolates"],
        "measured here": f"{card['measured']} ({MEASURED_BY})" if card["measured"] else "not yet",
        "used by": card["used_by"] or "no released model that we know of",
        "source": card["source"],
    }
