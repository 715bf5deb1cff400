"""Which encodings open which door."""

from collections.abc import Sequence
from typing import Any

from posenc.lab.description import describe, listing


def opened(chosen: Sequence[str]) -> list[dict[str, Any]]:
    """The chosen encodings and the whole catalogue: the doors that each opens, and what a KV cache holds for it.

    >>> [entry["doors"] for entry in opened(["rotary + alibi"]) if entry["name"] in ("rotary + alibi", "learned")]
    [['by_distance', 'turn'], ['embed']]
    """
    kept = {entry["name"]: entry for entry in listing.overview()["encodings"]}
    entries = {spec: kept.get(spec) or describe.entry(spec) for spec in [*chosen, *kept]}
    return [
        {"name": spec, "cache": entry["cache"]["words"]} | {key: entry[key] for key in ("doors", "group", "idea")}
        for spec, entry in entries.items()
        if not entry["problem"]
    ]
