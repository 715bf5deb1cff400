"""The explorer's page: its encodings and run as numbers, in one file."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import posenc
from posenc import catalogue
from posenc.encoding.base import Shape
from posenc.explorer import picture
from posenc.explorer.training_results import can_build, data_of_records, read_example, read_run
from posenc.lab.appearance import places
from posenc.lab.description import describe, listing
from posenc.lab.results import summary
from posenc.lab.views import page
from posenc.lab.views.sections import ENCODING_SECTIONS, order
from posenc.standalone import eject

TEMPLATE = Path(__file__).with_name("explorer.html.jinja")

SPECS = ("none", "sinusoidal", "learned", "rotary", "alibi", "t5_bias", "kerple", "fire", "sandwich", "shaw")
"""The default encodings of a page."""

SHAPE = Shape.of(64, 4, 128)
"""The model of the shown encodings: dim 64, 4 heads, trained length 128."""


def explore(specs: Sequence[str] = (), *, run: Path | None = None, records: Sequence[summary.Record] = ()) -> str:
    """Return the explorer as HTML, for these encodings and a run.

    specs       specs of encodings; empty for the best-known ones
    run         the folder of a comparison
    records     the folder's records for display, if the caller has read them

    Raises ValueError for an invalid spec, CannotRead for an invalid run.

    >>> page = explore(["rotary", "alibi"])
    >>> page.startswith("<!doctype html>"), len(page) < 3_000_000
    (True, True)
    """
    command = ["posenc", "explore", *specs, *(["--run", str(run)] if run else [])]
    training = data_of_records(records) if records else read_run(run) if run else read_example()
    buildable = [spec for spec in training["specs"] if run and can_build(spec, SHAPE)]
    specs = tuple(dict.fromkeys(specs or buildable or SPECS))
    sections = {"axes": picture.offset_maps(specs, SHAPE), "doors": door_table(specs)}
    sections["order"] = order.without_position(SHAPE)
    data = {
        "schema": page.SCHEMA,
        "version": posenc.__version__,
        "command": shlex.join(command),
        "title": "posenc explorer",
        "encodings": [encoding_data(spec, training["trained"].get(spec)) for spec in specs],
        "places": places([*specs, *training["sections"]["run"]["labels"], *catalogue.names()]),
        "sections": training["sections"] | sections,
    }
    return page.template(TEMPLATE).render(title=data["title"], script=page.script(), numbers=page.data_element(data))


def encoding_data(spec: str, training: Any) -> dict[str, Any]:
    """Return the data of one encoding, with its trained form."""
    encoding = catalogue.build(spec, SHAPE)
    sections = {name: section(encoding, SHAPE) for name, section in ENCODING_SECTIONS.items()}
    return {
        "name": spec,
        "spec": str(encoding),
        "doors": sorted(encoding.doors),
        "file": file_or_reason(spec),
        "sections": sections | {"training": training},
    }


def file_or_reason(spec: str) -> dict[str, str]:
    """Return the encoding as one file that needs PyTorch alone, or the reason why there is none."""
    try:
        return {"text": eject(spec, trained_length=SHAPE.max_len), "reason": ""}
    except ValueError as error:
        return {"text": "", "reason": str(error)}


def door_table(specs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the open doors and the KV cache's contents, of these encodings and of the catalogue.

    >>> [entry["doors"] for entry in door_table(["rotary + alibi"]) if entry["name"] in ("rotary + alibi", "learned")]
    [['by_distance', 'turn'], ['embed']]
    """
    by_name = {entry["name"]: entry for entry in listing.load_overview()["encodings"]}
    entries = {spec: by_name.get(spec) or describe.encoding_card_or_problem(spec) for spec in [*specs, *by_name]}
    return [
        {"name": spec, "cache": entry["cache"]["words"]} | {key: entry[key] for key in ("doors", "group", "idea")}
        for spec, entry in entries.items()
        if not entry["problem"]
    ]
