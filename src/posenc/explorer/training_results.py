"""Training results for the page: the records of a comparison, or the small example that ships."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posenc import catalogue
from posenc.encoding.base import Shape
from posenc.lab.results import sections, summary
from posenc.lab.runs import record
from posenc.lab.runs.settings import read_settings, sort_by_settings

EXAMPLE = Path(__file__).with_name("example.json")
"""The result of `read_run` for a comparison; tests/write_explorer_example.py writes it."""

MAX_PARAMETERS = 10_000_000
"""The most parameters of an encoding that a record names."""


def read_run(run: Path) -> dict[str, Any]:
    """Return the page's data from the records of a folder.

    Raises ValueError if there are no records, CannotRead if one is damaged.
    """
    records = sort_by_settings(record.summary_records(run), read_settings(run))
    return data_of_records(summary.records_for_display(records))


def data_of_records(records: Sequence[summary.Record]) -> dict[str, Any]:
    """Return the page's data from records for display: sections, trained encodings and specs."""
    specs = [record["experiment"]["spec"] for record in records]
    return {
        "specs": list(dict.fromkeys(spec for spec in specs if isinstance(spec, str))),
        "sections": sections.record_sections(records),
        "trained": sections.trained_pictures(records),
    }


def read_example() -> dict[str, Any]:
    """Return the data of the comparison that ships."""
    return json.loads(EXAMPLE.read_text(encoding="utf-8"))


def can_build(spec: str, shape: Shape) -> bool:
    """Return whether a spec from a record can be built, without running code that it names.

    A spec of a few letters may also name an encoding that needs all memory; MAX_PARAMETERS refuses it.
    """
    try:
        catalogue.parse(spec, trusted_files=())
        return catalogue.parameters_of(catalogue.build(spec, shape, device="meta")) <= MAX_PARAMETERS
    except ValueError:
        return False
