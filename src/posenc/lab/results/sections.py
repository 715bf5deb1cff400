"""What the views that move show of records: where heads look, how far encodings carry, and what training made of them.

The numbers are those of `summary`, so that a view and the report around it cannot disagree. web/src/data.ts says their
forms.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from posenc.lab.results import summary
from posenc.lab.results.summary import Record, Result, get, number
from posenc.lab.runs.record import made_by
from posenc.lab.runs.train import LEARNED

MOST_WEIGHTS = 400_000
"""Attention weights in a page; more would make it slow to open."""


def of(records: Sequence[Record]) -> dict[str, Any]:
    """The sections of a page that come from the records of a comparison.

    Raises ValueError for an empty list.
    """
    summary.need_records(records)
    return {
        "run": {
            "made": "; ".join(dict.fromkeys(made_by(record) for record in records)),
            "labels": summary.labels(records),
        },
        "attention": attention(records),
        "extrapolation": {"tasks": [curves(records, task) for task in summary.tasks(records)]},
    }


def telling(result: Result) -> Record | None:
    """The run whose attention speaks for an encoding: the first that learned, else the first."""
    return next((run for run in [*result.learned, *result.runs] if get(run, "attention")), None)


def attention(records: Sequence[Record]) -> dict[str, Any]:
    """For each task, the weights of one trained model of each encoding, with its positions and with them removed."""
    tasks, left_out, room = [], [], MOST_WEIGHTS
    for task in summary.tasks(records):
        found = []
        for result in summary.results(records, task):
            run = telling(result)
            tokens = [str(token) for token in get(run, "attention", "tokens") or []]
            maps = {name: summary.numbers(get(run, "attention", name)) for name in ("with", "without")}
            if not tokens or any(w.ndim != 4 or w.shape[2:] != (len(tokens),) * 2 for w in maps.values()):
                continue
            size = sum(w.size for w in maps.values())
            if size > room:
                left_out.append(f"{result.label} on {task}")
                continue
            room -= size
            found.append(
                {
                    "label": result.label,
                    "seed": get(run, "experiment", "seed"),
                    "learned": bool(result.learned),
                    "tokens": tokens,
                }
                | {name: [[thousandths(head) for head in layer] for layer in w] for name, w in maps.items()}
            )
        if found:
            tasks.append({"task": task, "models": found})
    return {"tasks": tasks, "left_out": left_out}


def thousandths(weights: np.ndarray) -> list[list[int | None]]:
    """Weights [queries, keys] in thousandths; a row ends with the last key that has any."""
    out = []
    for row in weights:
        last = int(np.flatnonzero(np.isnan(row) | (row >= 0.0005)).max(initial=-1))
        out.append([None if math.isnan(w) else round(1000 * w) for w in row[: last + 1].tolist()])
    return out


def curves(records: Sequence[Record], task: str) -> dict[str, Any]:
    """The scores of each encoding at each length, of the seeds that learned; why others have none."""
    found = summary.results(records, task)
    text = any(result.is_text for result in found)
    gate = summary.LEARNED_TEXT if text else f"{summary.percent(LEARNED)} % exact match at the trained length"
    measures = ("perplexity_ratio", "sliding_bits_per_byte") if text else ("exact_match",)
    return {
        "task": task,
        "trained": summary.trained_lengths(found),
        "unit": summary.REACHES[measures[0]][1],
        "measures": [{"id": measure, "name": summary.REACHES[measure][0]} for measure in measures],
        "gate": gate,
        "encodings": [
            {
                "label": result.label,
                "learned": len(result.learned),
                "of": len(result.runs),
                "seeds": result.seeds(),
                "in_range": summary.in_range_of_all(result),
                "points": {measure: points(result, measure) for measure in measures},
            }
            for result in found
        ],
    }


def points(result: Result, measure: str) -> list[dict[str, Any]]:
    """At each length: the median over the seeds that learned, as the report says it, and the score of each of them."""
    out = []
    for length, _ in result.lengths():
        spread = result.at(length, measure)
        if spread is not None:
            scores = [number(get(entry, measure)) for entry in result.learned_entries[length]]
            known = [score for score in scores if score is not None]
            out.append({"length": length, "median": spread.median, "seeds": known})
    return out


def trained(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Spec -> what training made of it: what it adds, its wavelengths, its bias; of the run that saw most positions.

    Runs that learned go before those that did not.
    """
    chosen: dict[str, Record] = {}
    for record in records:
        spec = get(record, "experiment", "spec")
        if isinstance(spec, str) and get(record, "pictures"):
            chosen[spec] = max(chosen.get(spec, record), record, key=summary.worth)
    return {
        spec: {name: get(record, "pictures", name) for name in ("added", "bias", "wavelengths")}
        | {"task": summary.task_of(record), "seed": get(record, "experiment", "seed")}
        for spec, record in chosen.items()
    }
