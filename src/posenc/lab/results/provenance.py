"""How records were made, where they differ, and what they do not say: the small print of a page."""

import json
import math
from collections.abc import Sequence
from typing import Any

from posenc.lab.results import statistics, summary
from posenc.lab.results.summary import Record, get, number, tasks
from posenc.lab.runs import index

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
    for name in names:
        if name in ("spec", "task"):
            continue
        by_task = {}
        for task, runs in runs_on.items():
            values = values_of(runs, "experiment", name)
            by_task[task] = (" or " if len(values) < 4 else ", ").join(values)
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
    found = summary.results(records)
    if not any(result.is_text for result in found):
        out.append("Text: no language model was trained, so nothing is said about prediction.")
    if all(result.is_text for result in found):
        out.append("Exact tasks: only text was used, so nothing is said about copying or looking things up.")
    few = min(len(result.runs) for result in found)
    if few < statistics.FEWEST:
        out.append(
            f"The spread over seeds: some results rest on {'one seed' if few == 1 else 'two seeds'}; three are the "
            f"least for a claim."
        )
    labels = summary.labels(records)
    for task in tasks(records):
        present = {result.label for result in found if result.task == task}
        absent = [label for label in labels if label not in present]
        if absent:
            out.append(f"{task} with {summary.listed([summary.name(x) for x in absent])}.")
    short = [r for r in found if not any(factor and factor > 1 for _, factor in r.lengths())]
    if short:
        out.append(
            f"Lengths beyond the trained one: "
            f"{summary.listed([f'{summary.name(r.label)} on {r.task}' for r in short[:8]])}."
        )
    labelled = summary.labelled(records)
    for key, words in (("ablation", "Ablations"), ("order", "The order test"), ("attention", "Attention maps")):
        if key in index.LEFT_OUT and len(records) > index.MOST_WHOLE:
            continue
        without = dict.fromkeys(label for label, run in labelled if not get(run, key))
        if without:
            whole = len(without) == len(labels) and all(not get(run, key) for run in records)
            out.append(
                f"{words}{'' if whole else ' in some runs of ' + summary.listed([summary.name(x) for x in without])}."
            )
    if len(records) > index.MOST_WHOLE:
        out.append(
            f"Pictures and attention maps of single runs: of more than {index.MOST_WHOLE:,} runs "
            f"they stay in the records."
        )
        out.append(
            f"Figures of what is lost without positions: of more than {index.MOST_WHOLE:,} runs they are left out; "
            f"`posenc.lab.figures.ablation` draws them."
        )
    old = sum(summary.is_text(run) and get(run, "in_distribution", "context_gain") is None for run in records)
    if old:
        out.append(
            f"What the context saves: {old} of {len(records)} records are of an earlier version, which called a text "
            f"learned when its loss had stopped falling; delete them and run the comparison again."
        )
    wild = sum(has_wild(run) for run in records)
    if wild:
        out.append(f"{wild} of {len(records)} records hold NaN or infinite numbers; NaN counts as not measured.")
    return out


def has_wild(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(has_wild, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_wild, value))
