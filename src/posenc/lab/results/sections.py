"""The data of the interactive views of records: attention weights, scores by length, and trained encodings.

The numbers are those of `summary`, so a view agrees with the report around it. web/src/data.ts has their types.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from posenc.lab.results import summary
from posenc.lab.results.summary import Record, Result, get, number
from posenc.lab.runs.record import made_by
from posenc.lab.runs.train import LEARNED_SCORE

MAX_WEIGHTS = 400_000
"""The most attention weights in a page; more would make it slow to open."""


def record_sections(records: Sequence[Record]) -> dict[str, Any]:
    """Return the sections of a page that come from the records of a comparison.

    Raises ValueError for an empty list.
    """
    summary.require_records(records)
    return {
        "run": {
            "provenance": "; ".join(dict.fromkeys(made_by(record) for record in records)),
            "labels": summary.labels(records),
        },
        "attention": attention_section(records),
        "extrapolation": {"tasks": [extrapolation_section(records, task) for task in summary.tasks(records)]},
    }


def attention_run(result: Result) -> Record | None:
    """Return the run whose attention is shown: the first with attention that learned, else the first with any."""
    return next((run for run in [*result.learned, *result.runs] if get(run, "attention")), None)


def attention_section(records: Sequence[Record]) -> dict[str, Any]:
    """Return for each task the attention of one model of each encoding, with positions and without."""
    tasks, left_out, budget = [], [], MAX_WEIGHTS
    for task in summary.tasks(records):
        models = []
        for result in summary.results(records, task):
            run = attention_run(result)
            tokens = [str(token) for token in get(run, "attention", "tokens") or []]
            maps = {name: summary.float_array(get(run, "attention", name)) for name in ("with", "without")}
            if not tokens or any(w.ndim != 4 or w.shape[2:] != (len(tokens),) * 2 for w in maps.values()):
                continue
            size = sum(w.size for w in maps.values())
            if size > budget:
                left_out.append(f"{result.label} on {task}")
                continue
            budget -= size
            models.append(
                {
                    "label": result.label,
                    "seed": get(run, "experiment", "seed"),
                    "learned": bool(result.learned),
                    "tokens": tokens,
                }
                | {name: [[thousandths(head) for head in layer] for layer in w] for name, w in maps.items()}
            )
        if models:
            tasks.append({"task": task, "models": models})
    return {"tasks": tasks, "left_out": left_out}


def thousandths(weights: np.ndarray) -> list[list[int | None]]:
    """Return weights [queries, keys] in thousandths; a row ends with its last nonzero weight."""
    out = []
    for row in weights:
        last = int(np.flatnonzero(np.isnan(row) | (row >= 0.0005)).max(initial=-1))
        out.append([None if math.isnan(w) else round(1000 * w) for w in row[: last + 1].tolist()])
    return out


def extrapolation_section(records: Sequence[Record], task: str) -> dict[str, Any]:
    """Return each encoding's scores at each length, over the seeds that learned, and the mark for learning."""
    results = summary.results(records, task)
    text = any(result.is_text for result in results)
    gate = summary.LEARNED_TEXT if text else f"{summary.percent(LEARNED_SCORE)} % exact match at the trained length"
    measures = ("perplexity_ratio", "sliding_bits_per_byte") if text else ("exact_match",)
    return {
        "task": task,
        "trained_lengths": summary.trained_lengths(results),
        "unit": summary.SCORE_AXES[measures[0]][1],
        "measures": [{"id": measure, "name": summary.SCORE_AXES[measure][0]} for measure in measures],
        "gate": gate,
        "encodings": [
            {
                "label": result.label,
                "learned": len(result.learned),
                "runs": len(result.runs),
                "seeds": result.seeds(),
                "in_range": summary.trained_score_text(result),
                "points": {measure: score_points(result, measure) for measure in measures},
            }
            for result in results
        ],
    }


def score_points(result: Result, measure: str) -> list[dict[str, Any]]:
    """Return for each length the median over the seeds that learned, and the score of each."""
    entries = []
    for length, _ in result.lengths():
        estimate = result.at(length, measure)
        if estimate is not None:
            scores = [number(get(entry, measure)) for entry in result.learned_entries[length]]
            seed_scores = [score for score in scores if score is not None]
            entries.append({"length": length, "median": estimate.median, "seeds": seed_scores})
    return entries


def trained_pictures(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return spec -> the pictures of its trained encoding: what it adds, its wavelengths, its bias.

    They are of the run that learned, if any did, with the most positions.
    """
    best_runs: dict[str, Record] = {}
    for record in records:
        spec = get(record, "experiment", "spec")
        if isinstance(spec, str) and get(record, "pictures"):
            best_runs[spec] = max(best_runs.get(spec, record), record, key=summary.training_rank)
    return {
        spec: {name: get(record, "pictures", name) for name in ("added", "bias", "wavelengths")}
        | {"task": summary.task_of(record), "seed": get(record, "experiment", "seed")}
        for spec, record in best_runs.items()
    }
