"""The numbers behind those figures of a report that the tables of results do not hold: headings, and rows of words."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from posenc.lab.results import figures, summary
from posenc.lab.results.figures.measured import found_by_place
from posenc.lab.results.summary import NOTHING, Record, count, percent
from posenc.lab.results.summary.words import bits

Table: TypeAlias = tuple[list[str], list[list[str]]]


def ablation(records: Sequence[Record], task: str) -> Table:
    """What is left of each encoding's score under each damage, with intervals."""
    found = summary.results(records, task)
    form = bits if any(result.is_text for result in found) else percent
    rows = [
        [r.label, *(summary.cell(r.spread("ablation", kind), form).plain for kind in figures.ABLATIONS)] for r in found
    ]
    return ["encoding", *figures.ABLATIONS.values()], rows


def depths(records: Sequence[Record], task: str) -> Table:
    """What share is found at each place and length."""
    found = {r.label: table for r in summary.results(records, task) if (table := found_by_place(r))}
    lengths, places = (sorted({at[axis] for table in found.values() for at in table}) for axis in (0, 1))
    rows = [
        [label, f"{100 * place:.0f}", *(number(table.get((length, place)), percent) for length in lengths)]
        for label, table in found.items()
        for place in places
    ]
    return ["encoding", "place in the text, %", *(f"found at length {count(length)}, %" for length in lengths)], rows


def attention(run: Record) -> Table:
    """The mean weight on the first token, the token before and the token itself, over heads and queries.

    The first two queries, which have little to choose from, are left out.
    """
    rows = []
    for kind, words in (("with", "with position"), ("without", "position removed")):
        weights = summary.numbers(summary.get(run, "attention", kind) or [])
        if weights.ndim == 4 and weights.shape[-1] == weights.shape[-2] > 2:
            at = np.arange(2, weights.shape[-1])
            rows.append([words, *(number(mean(weights[..., at, key])) for key in (0 * at, at - 1, at))])
    return ["model", "on the first token", "on the token before", "on itself"], rows


def mean(values: np.ndarray) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def number(value: Any, form: Any = "{:.2f}".format) -> str:
    """Two digits, or another form; a tiny negative number would be -0.00."""
    if value is None or not np.isfinite(value):
        return NOTHING
    return form(round(float(value), 2) + 0.0)
