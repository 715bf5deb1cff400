"""The tables of numbers below those figures of a report that the tables of results do not cover."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from posenc.lab.results import figures, summary
from posenc.lab.results.figures.scores import depth_scores
from posenc.lab.results.summary import DASH, Record, count, percent
from posenc.lab.results.summary.formatting import bits

Table: TypeAlias = tuple[list[str], list[list[str]]]


def ablation(records: Sequence[Record], task: str) -> Table:
    """Return the score of each encoding under each ablation, with intervals."""
    results = summary.results(records, task)
    form = bits if any(result.is_text for result in results) else percent
    rows = [
        [r.label, *(summary.to_cell(r.estimate("ablation", kind), form).plain_text for kind in figures.ABLATIONS)]
        for r in results
    ]
    return ["encoding", *figures.ABLATIONS.values()], rows


def depths(records: Sequence[Record], task: str) -> Table:
    """Return the share of right answers at each place and length."""
    tables = {r.label: table for r in summary.results(records, task) if (table := depth_scores(r))}
    lengths, places = (sorted({at[axis] for table in tables.values() for at in table}) for axis in (0, 1))
    rows = [
        [label, f"{100 * place:.0f}", *(format_finite(table.get((length, place)), percent) for length in lengths)]
        for label, table in tables.items()
        for place in places
    ]
    return ["encoding", "place in the text, %", *(f"found at length {count(length)}, %" for length in lengths)], rows


def attention(run: Record) -> Table:
    """Return the mean weight on the first, the previous and the current token, over heads and queries.

    The first two queries, which see few keys, are left out.
    """
    rows = []
    for kind, words in (("with", "with position"), ("without", "position removed")):
        weights = summary.float_array(summary.get(run, "attention", kind) or [])
        if weights.ndim == 4 and weights.shape[-1] == weights.shape[-2] > 2:
            at = np.arange(2, weights.shape[-1])
            rows.append([words, *(format_finite(finite_mean(weights[..., at, key])) for key in (0 * at, at - 1, at))])
    return ["model", "on the first token", "on the token before", "on itself"], rows


def finite_mean(values: np.ndarray) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def format_finite(value: Any, form: Any = "{:.2f}".format) -> str:
    """Format a number with two digits, or another form, and never as -0.00."""
    if value is None or not np.isfinite(value):
        return DASH
    return form(round(float(value), 2) + 0.0)
