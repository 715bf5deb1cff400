"""Describe how records were made, where they differ, and what they lack: the small print of a page."""

import json
import math
from collections.abc import Sequence
from typing import Any

from posenc.lab.results import statistics, summary
from posenc.lab.results.summary import Record, get, number, tasks
from posenc.lab.runs.record import MOST_WITH_PICTURES, PICTURE_KEYS

# The most letters of a setting, however many values it lists.
MAX_VALUE_LETTERS = 4_000


def value_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {value_text(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(value_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return summary.DASH if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def total(records: Sequence[Record], key: str) -> float:
    return sum(x for run in records if (x := number(get(run, key))) is not None and math.isfinite(x))


def provenance_rows(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return (name, text): the settings of the runs, by task where they differ."""
    lines = [
        ("runs", str(len(records))),
        ("CPU time", f"{total(records, 'cpu_s'):,.0f} s, of which training {total(records, 'train_cpu_s'):,.0f} s"),
        ("wall time, runs added up", f"{total(records, 'wall_s'):,.0f} s"),
    ]
    versions = dict.fromkeys(name for run in records for name in (get(run, "versions") or {}))
    for name in versions:
        values = values_of(records, "versions", name)
        lines.append((name, ", ".join(values[:12]) + (f" and {len(values) - 12} more" if len(values) > 12 else "")))
    for text in {json.dumps(t, sort_keys=True, default=str): t for run in records if (t := get(run, "text"))}.values():
        lines.append(("text", value_text(text)))
    names = dict.fromkeys(name for run in records for name in (get(run, "experiment") or {}))
    runs_on: dict[str, list[Record]] = {}
    for run in records:
        runs_on.setdefault(summary.task_of(run), []).append(run)
    for name in [name for name in names if name not in ("spec", "task")]:
        values = {task: values_of(runs, "experiment", name) for task, runs in runs_on.items()}
        by_task = {task: (" or " if len(texts) < 4 else ", ").join(texts) for task, texts in values.items()}
        first_text, *other_texts = dict.fromkeys(by_task.values())
        task_texts = "; ".join(f"{task}: {value or summary.DASH}" for task, value in by_task.items())
        lines.append((name.replace("_", " "), task_texts if other_texts else first_text))
    full_specs = {summary.spec_of(run): str(get(run, "encoding")) for run in records if get(run, "encoding")}
    built_texts = (spec if spec == full else f"{spec} as {full}" for spec, full in full_specs.items())
    lines.append(("built", "; ".join(dict.fromkeys(built_texts))))
    return [(name, summary.for_display(value, MAX_VALUE_LETTERS)) for name, value in lines if value]


def values_of(records: Sequence[Record], *path: str) -> list[str]:
    """Return the distinct values at a path of keys, as text."""
    return list(dict.fromkeys(value_text(value) for run in records if (value := get(run, *path)) is not None))


def missing_measurements(records: Sequence[Record]) -> list[str]:
    """Return lines on the measurements that the records do not have."""
    lines = []
    results, labels, too_many = summary.results(records), summary.labels(records), len(records) > MOST_WITH_PICTURES
    if not any(result.is_text for result in results):
        lines.append("Text: no language model was trained, so nothing is said about prediction.")
    if all(result.is_text for result in results):
        lines.append("Exact tasks: only text was used, so nothing is said about copying or looking things up.")
    fewest_seeds = min(len(result.runs) for result in results)
    if fewest_seeds < statistics.MIN_SEEDS:
        seeds = "one seed" if fewest_seeds == 1 else "two seeds"
        lines.append(f"The spread over seeds: some results rest on {seeds}; a claim needs three.")
    for task in tasks(records):
        present = {result.label for result in results if result.task == task}
        if absent := [label for label in labels if label not in present]:
            lines.append(f"{task} with {summary.label_list(absent)}.")
    short = [r for r in results if not any(factor and factor > 1 for _, factor in r.lengths())]
    if short:
        names = summary.join_words([f"`{r.label}` on {r.task}" for r in short[:8]])
        lines.append(f"Lengths beyond the trained one: {names}.")
    for key, words in (("ablation", "Ablations"), ("order", "The order test"), ("attention", "Attention maps")):
        if key in PICTURE_KEYS and too_many:
            continue
        lacking = dict.fromkeys(label for label, run in summary.labelled_records(records) if not get(run, key))
        if lacking:
            everywhere = not any(get(run, key) for run in records)
            lines.append(f"{words}{'' if everywhere else ' in some runs of ' + summary.label_list(lacking)}.")
    if too_many:
        lines += [
            f"Pictures and attention maps: with more than {MOST_WITH_PICTURES:,} runs only the records have them.",
            f"Figures of ablations: with more than {MOST_WITH_PICTURES:,} runs they are left out; "
            "`posenc.lab.figures.ablation` draws them.",
        ]
    return lines
