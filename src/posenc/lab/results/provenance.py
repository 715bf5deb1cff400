"""How records were made, where they differ, and what they do not say: the small print of a page."""

import json
import math
from collections.abc import Sequence
from typing import Any

from posenc.lab.results import statistics, summary
from posenc.lab.results.summary import Record, get, number, tasks
from posenc.lab.runs.record import LEFT_OUT, MOST_WHOLE

# Letters of a setting, or of what runs have in common, however many values it lists.
MOST_OF_A_VALUE = 4_000


def readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {readable(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(readable, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return summary.NOTHING if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def total(records: Sequence[Record], key: str) -> float:
    return sum(x for run in records if (x := number(get(run, key))) is not None and math.isfinite(x))


def how_it_was_made(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the runs have in common, and where they differ."""
    out = [
        ("runs", str(len(records))),
        ("CPU time", f"{total(records, 'cpu_s'):,.0f} s, of which training {total(records, 'train_cpu_s'):,.0f} s"),
        ("wall time, runs added up", f"{total(records, 'wall_s'):,.0f} s"),
    ]
    versions = dict.fromkeys(name for run in records for name in (get(run, "versions") or {}))
    for name in versions:
        values = values_of(records, "versions", name)
        out.append((name, ", ".join(values[:12]) + (f" and {len(values) - 12} more" if len(values) > 12 else "")))
    for text in {json.dumps(t, sort_keys=True, default=str): t for run in records if (t := get(run, "text"))}.values():
        out.append(("text", readable(text)))
    names = dict.fromkeys(name for run in records for name in (get(run, "experiment") or {}))
    runs_on: dict[str, list[Record]] = {}
    for run in records:
        runs_on.setdefault(summary.task_of(run), []).append(run)
    for name in [name for name in names if name not in ("spec", "task")]:
        values = {task: values_of(runs, "experiment", name) for task, runs in runs_on.items()}
        by_task = {task: (" or " if len(own) < 4 else ", ").join(own) for task, own in values.items()}
        same, *others = dict.fromkeys(by_task.values())
        each = "; ".join(f"{task}: {value or summary.NOTHING}" for task, value in by_task.items())
        out.append((name.replace("_", " "), each if others else same))
    built = {summary.spec_of(run): str(get(run, "encoding")) for run in records if get(run, "encoding")}
    each_built = (spec if spec == full else f"{spec} as {full}" for spec, full in built.items())
    out.append(("built", "; ".join(dict.fromkeys(each_built))))
    return [(name, summary.legible(value, MOST_OF_A_VALUE)) for name, value in out if value]


def values_of(records: Sequence[Record], *path: str) -> list[str]:
    """What stands at a path of keys, each value once, in words."""
    return list(dict.fromkeys(readable(value) for run in records if (value := get(run, *path)) is not None))


def not_measured(records: Sequence[Record]) -> list[str]:
    """What a reader might look for and the records do not have."""
    out = []
    results, labels, many = summary.results(records), summary.labels(records), len(records) > MOST_WHOLE
    if not any(result.is_text for result in results):
        out.append("Text: no language model was trained, so nothing is said about prediction.")
    if all(result.is_text for result in results):
        out.append("Exact tasks: only text was used, so nothing is said about copying or looking things up.")
    few = min(len(result.runs) for result in results)
    if few < statistics.FEWEST:
        seeds = "one seed" if few == 1 else "two seeds"
        out.append(f"The spread over seeds: some results rest on {seeds}; three are the least for a claim.")
    for task in tasks(records):
        present = {result.label for result in results if result.task == task}
        if absent := [summary.name(label) for label in labels if label not in present]:
            out.append(f"{task} with {summary.listed(absent)}.")
    short = [r for r in results if not any(factor and factor > 1 for _, factor in r.lengths())]
    if short:
        names = summary.listed([f"{summary.name(r.label)} on {r.task}" for r in short[:8]])
        out.append(f"Lengths beyond the trained one: {names}.")
    for key, words in (("ablation", "Ablations"), ("order", "The order test"), ("attention", "Attention maps")):
        if key in LEFT_OUT and many:
            continue
        without = dict.fromkeys(summary.name(label) for label, run in summary.labelled(records) if not get(run, key))
        if without:
            everywhere = not any(get(run, key) for run in records)
            out.append(f"{words}{'' if everywhere else ' in some runs of ' + summary.listed([*without])}.")
    if many:
        out += [
            f"Pictures and attention maps of single runs: of more than {MOST_WHOLE:,} runs they stay in the records.",
            f"Figures of what is lost without positions: of more than {MOST_WHOLE:,} runs they are left out; "
            f"`posenc.lab.figures.ablation` draws them.",
        ]
    return out
