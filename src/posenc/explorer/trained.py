"""What was trained, for the page: the records of a comparison, or the small example that ships."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posenc import catalogue
from posenc.encoding.base import Shape
from posenc.lab.results import sections, summary
from posenc.lab.runs import record
from posenc.lab.runs.settings import in_reading_order, read_settings

EXAMPLE = Path(__file__).with_name("example.json")
"""What `of` gave for a comparison; tests/write_explorer_example.py writes it."""

MOST_PARAMETERS = 10_000_000
"""Of an encoding that a record asks for."""


def of(run: Path) -> dict[str, Any]:
    """What the records of a folder have for a page.

    Raises ValueError where there are no records, CannotRead where one is damaged.
    """
    return of_records(summary.shown(in_reading_order(record.for_summaries(run), read_settings(run))))


def of_records(records: Sequence[summary.Record]) -> dict[str, Any]:
    """What records, as people are shown them, have for a page: sections, what training made of each spec, the specs."""
    asked = [record["experiment"]["spec"] for record in records]
    return {
        "specs": list(dict.fromkeys(spec for spec in asked if isinstance(spec, str))),
        "sections": sections.of(records),
        "trained": sections.trained(records),
    }


def example() -> dict[str, Any]:
    """The same of the comparison that ships."""
    return json.loads(EXAMPLE.read_text(encoding="utf-8"))


def builds(spec: str, shape: Shape) -> bool:
    """Whether a spec that was read from a record gives an encoding of the page, without running code that it names.

    Nor one so large that a record of a few letters would ask for all memory.
    """
    try:
        catalogue.parse(spec, own=())
        return catalogue.parameters_of(catalogue.build(spec, shape, device="meta")) <= MOST_PARAMETERS
    except ValueError:
        return False
