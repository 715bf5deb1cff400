"""The explorer's page: what is asked for, as numbers, in one file."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import posenc
from posenc import catalogue
from posenc.encoding.base import Shape
from posenc.explorer import picture, trained
from posenc.lab.appearance import places
from posenc.lab.description import describe, listing
from posenc.lab.results import summary
from posenc.lab.views import page
from posenc.lab.views.sections import OF_ENCODINGS, order

TEMPLATE = Path(__file__).with_name("explorer.html.jinja")

SPECS = ("none", "sinusoidal", "learned", "rotary", "alibi", "t5_bias", "kerple", "fire", "sandwich", "shaw")
"""The encodings of a page that was asked for none."""

SHAPE = Shape.of(64, 4, 128)
"""The model that encodings are shown for: dim 64, 4 heads, trained length 128."""


def explore(chosen: Sequence[str] = (), *, run: Path | None = None, records: Sequence[summary.Record] = ()) -> str:
    """The page as HTML: of these encodings, and of what was trained, where a run is given.

    chosen      specs; none for a choice of the best known
    run         the folder of a comparison
    records     those of the folder, as people are shown them, where they have been read

    Raises ValueError for a spec that is none, CannotRead for a run that is none.

    >>> page = explore(["rotary", "alibi"])
    >>> page.startswith("<!doctype html>"), len(page) < 3_000_000
    (True, True)
    """
    asked = ["posenc", "explore", *chosen, *(["--run", str(run)] if run else [])]
    known = trained.of_records(records) if records else trained.of(run) if run else trained.example()
    shown = [spec for spec in known["specs"] if run and trained.builds(spec, SHAPE)]
    specs = tuple(dict.fromkeys(chosen or shown or SPECS))
    data = {
        "schema": page.SCHEMA,
        "version": posenc.__version__,
        "command": shlex.join(asked),
        "title": "posenc explorer",
        "encodings": [encoding_of(spec, known["trained"].get(spec)) for spec in specs],
        "places": places([*specs, *known["sections"]["run"]["labels"], *catalogue.names()]),
        "sections": known["sections"]
        | {"axes": picture.on_two_axes(specs, SHAPE), "doors": opened(specs), "order": order.without_position(SHAPE)},
    }
    return page.template(TEMPLATE).render(title=data["title"], script=page.script(), numbers=page.numbers(data))


def encoding_of(spec: str, trained: Any) -> dict[str, Any]:
    """One encoding of the page, and what training made of it."""
    encoding = catalogue.build(spec, SHAPE)
    return {
        "name": spec,
        "spec": str(encoding),
        "doors": sorted(encoding.doors),
        "sections": {name: of(encoding, SHAPE) for name, of in OF_ENCODINGS.items()} | {"trained": trained},
    }


def opened(chosen: Sequence[str]) -> list[dict[str, Any]]:
    """The chosen encodings and the whole catalogue: the doors that each opens, and what a KV cache holds for it.

    >>> [entry["doors"] for entry in opened(["rotary + alibi"]) if entry["name"] in ("rotary + alibi", "learned")]
    [['by_distance', 'turn'], ['embed']]
    """
    by_name = {entry["name"]: entry for entry in listing.overview()["encodings"]}
    entries = {spec: by_name.get(spec) or describe.entry(spec) for spec in [*chosen, *by_name]}
    return [
        {"name": spec, "cache": entry["cache"]["words"]} | {key: entry[key] for key in ("doors", "group", "idea")}
        for spec, entry in entries.items()
        if not entry["problem"]
    ]
