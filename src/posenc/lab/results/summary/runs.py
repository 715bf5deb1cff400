"""Group the runs of a comparison into results: one for each encoding and task, over its seeds."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from posenc.lab.results import statistics
from posenc.lab.results.statistics import Estimate
from posenc.specs.plugins import plugins_in

if TYPE_CHECKING:
    import numpy as np

Record: TypeAlias = dict[str, Any]

NOT_LEARNED = "not learned"
DEFAULT_SEQUENCES = 512
"""The number of held-out sequences, if a record does not say it."""


def get(record: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None if the record does not have it."""
    for key in path:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def number(value: Any) -> float | None:
    """Return the value as a float; None for anything that is not a number, and for NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return float(value)


def float_array(values: Any) -> "np.ndarray":
    """Return an array of floats in which everything but finite numbers is NaN, which matplotlib leaves out."""
    import numpy as np

    try:
        floats = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)
    return np.where(np.isfinite(floats), floats, np.nan)


def estimate_over_seeds(values: Iterable[Any], *, sequences: int | None = None) -> Estimate | None:
    """Return the estimate of those values that are numbers, or None if there are none."""
    numbers = [x for x in map(number, values) if x is not None]
    shares = all(0 <= x <= 1 for x in numbers)
    return statistics.estimate(numbers, sequences=sequences if shares else None)


@dataclass(frozen=True, eq=False)
class Result:
    """The runs of one encoding on one task, one for each seed."""

    label: str
    task: str
    runs: list[Record]
    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def memoise(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return a value that is computed from these runs, memoised under a key."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    @cached_property
    def learned(self) -> list[Record]:
        """The runs that learned the task; lengths and speed are reported of these alone."""
        return [run for run in self.runs if run.get("learned") is True]

    @property
    def is_text(self) -> bool:
        return any(is_text(run) for run in self.runs)

    @property
    def trained_length(self) -> float | None:
        return next((x for x in map(trained_length, self.runs) if x is not None), None)

    def estimate(self, *path: str) -> Estimate | None:
        """Return the estimate of one number over the runs that learned."""
        return self.memoise(path, lambda: estimate_over_seeds(get(run, *path) for run in self.learned))

    def estimate_of_all(self, *path: str) -> Estimate | None:
        return estimate_over_seeds(get(run, *path) for run in self.runs)

    def in_range(self) -> Estimate | None:
        """Return the exact match at the trained length over all runs."""
        scores = [get(run, "in_distribution", "exact_match") for run in self.runs]
        return estimate_over_seeds(scores, sequences=sequence_count(e for run in self.runs for e in entries(run)[:1]))

    def lengths(self) -> list[tuple[float, float | None]]:
        """Return each measured (length, factor of the trained length), shortest first."""
        return sorted(self.factors.items())

    @cached_property
    def factors(self) -> dict[float, float | None]:
        by_length: dict[float, float | None] = {}
        for run in self.runs:
            for entry in entries(run):
                by_length.setdefault(entry["length"], number(get(entry, "factor")))
        return by_length

    @cached_property
    def learned_entries(self) -> dict[float, list[dict[str, Any]]]:
        """The entries of the runs that learned, by length."""
        by_length: dict[float, list[dict[str, Any]]] = {}
        for run in self.learned:
            for entry in entries(run):
                by_length.setdefault(entry["length"], []).append(entry)
        return by_length

    def at(self, length: float, measure: str) -> Estimate | None:
        """Return one measure at one length, over the runs that learned."""
        return self.memoise((length, measure), lambda: self.estimate_at(length, measure))

    def estimate_at(self, length: float, measure: str) -> Estimate | None:
        entries_there = self.learned_entries.get(length, [])
        count = sequence_count(entries_there) if measure == "exact_match" else None
        return estimate_over_seeds((get(entry, measure) for entry in entries_there), sequences=count)

    def extrapolation(self, measure: str) -> list[tuple[float, float, Estimate]]:
        """Return (length, factor, estimate) at each length beyond the trained one that has the measure."""
        estimates = [
            (length, factor, self.at(length, measure)) for length, factor in self.lengths() if factor and factor > 1
        ]
        return [(length, factor, estimate) for length, factor, estimate in estimates if estimate is not None]

    @property
    def spec(self) -> str:
        return spec_of(self.runs[0])

    def seeds(self) -> str:
        """Return how many seeds learned, in words; empty if all did."""
        if len(self.learned) == len(self.runs):
            return ""
        return f"{len(self.learned)} of {len(self.runs)} learned" if self.learned else NOT_LEARNED


def entries(run: Record) -> list[dict[str, Any]]:
    """Return the length entries of a run that have a length."""
    lengths = get(run, "lengths")
    return [e for e in lengths if number(get(e, "length")) is not None] if isinstance(lengths, list) else []


def sequence_count(length_entries: Iterable[dict[str, Any]]) -> int:
    """Return the number of held-out sequences behind length entries; the smallest, if they differ."""
    counts = [x for entry in length_entries if (x := number(get(entry, "sequences"))) is not None and x >= 1]
    return int(min(counts, default=DEFAULT_SEQUENCES))


def trained_length(run: Record) -> float | None:
    length = number(get(run, "experiment", "train_length"))
    return length if length is not None else next((number(e["length"]) for e in entries(run)), None)


def trained_tokens(run: Record) -> float | None:
    """Return the number of positions in training: the tokens of the longest sequence, several to an item."""
    tokens = number(get(run, "trained_tokens"))
    return tokens if tokens is not None else trained_length(run)


def training_rank(run: Record) -> tuple[bool, float]:
    """Return a sort key of runs: those that learned are greater, then those with more trained positions."""
    return run.get("learned") is True, trained_tokens(run) or 0.0


def is_text(run: Record) -> bool:
    """Whether the run is measured in bits per byte (lower is better) and not in exact match."""
    return number(get(run, "in_distribution", "exact_match")) is None and get(run, "text") is not None


def trained_lengths(results: Sequence[Result]) -> list[float]:
    return sorted({x for result in results if (x := result.trained_length) is not None})


def spec_of(run: Record) -> str:
    spec = get(run, "experiment", "spec") or get(run, "encoding") or "unnamed"
    # Specs that are cycled over the layers.
    return " / ".join(map(str, spec)) if isinstance(spec, (list, tuple)) else str(spec)


def is_external(result: "Result") -> bool:
    """Whether an encoding comes from a file or from another package."""
    spec = result.spec
    return ".py:" in spec or not plugins_in("posenc.encodings").keys().isdisjoint(re.findall(r"\w+", spec))


def task_of(run: Record) -> str:
    return str(get(run, "experiment", "task") or "unnamed task")


def latest_records(records: Sequence[Record]) -> list[Record]:
    """Return the records, only the last of those with the same key."""
    by_key: dict[Any, Record] = {}
    for index, record in enumerate(records):
        by_key[get(record, "key") or index] = record
    return list(by_key.values())


class IndexedRecords(list[Record]):
    """Records grouped once by label and task, for a page whose parts all need them. They must not change."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__(records)
        self.by_label = labelled_records(list(self))
        self.by_task: dict[str, list[Result]] = {}
        for result in group_results(self.by_label):
            self.by_task.setdefault(result.task, []).append(result)


def labelled_records(records: Sequence[Record]) -> list[tuple[str, Record]]:
    """Return each record with its name: its label or spec, and settings in which that spec's runs differ.

    A label that two specs share is not used.
    """
    if isinstance(records, IndexedRecords):
        return records.by_label
    records = latest_records(records)

    def settings(run: Record) -> dict[str, Any]:
        experiment = get(run, "experiment") or {}
        return {name: value for name, value in experiment.items() if name not in ("spec", "task", "seed")}

    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in records:
        # Most runs of a group have the same settings: one comparison is enough.
        variants = groups.setdefault((spec_of(run), task_of(run)), [])
        variants += [settings(run)] if settings(run) not in variants[:1] else []
    varying: dict[str, dict[str, None]] = {spec: {} for spec, _ in groups}
    for (spec, _), variants in groups.items():
        for name in dict.fromkeys(name for variant in variants for name in variant):
            if len({json.dumps(variant.get(name), default=str) for variant in variants}) > 1:
                varying[spec][name] = None
    own_labels = {spec_of(run): str(label) for run in records if (label := get(run, "label"))}
    label_counts = Counter([*own_labels.values(), *(spec for spec in varying if spec not in own_labels)])
    pairs = []
    for run in records:
        spec, values = spec_of(run), settings(run)
        label = own_labels.get(spec, spec) if label_counts[own_labels.get(spec, spec)] == 1 else spec
        extra = ", ".join(f"{name}={values[name]}" for name in varying[spec] if values.get(name) is not None)
        pairs.append((f"{label} [{extra}]" if extra else label, run))
    return pairs


def labels(records: Sequence[Record]) -> list[str]:
    """Return the names of all encodings, in order of appearance."""
    return list(dict.fromkeys(label for label, _ in labelled_records(records)))


def tasks(records: Sequence[Record]) -> list[str]:
    """Return the tasks, in order of appearance."""
    return list(dict.fromkeys(task_of(run) for run in records))


def results(records: Sequence[Record], task: str | None = None) -> list[Result]:
    """Return one result for each encoding and task, in order of appearance."""
    if isinstance(records, IndexedRecords):
        names = records.by_task if task is None else [task]
        return [result for name in names for result in records.by_task.get(name, [])]
    return group_results([pair for pair in labelled_records(records) if task is None or task_of(pair[1]) == task])


def group_results(pairs: Sequence[tuple[str, Record]]) -> list[Result]:
    """Group labelled records by task and encoding; the tasks in order of appearance."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for label, run in pairs:
        groups.setdefault((task_of(run), label), []).append(run)
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in groups))}
    return [Result(label, name, runs) for (name, label), runs in sorted(groups.items(), key=lambda x: order[x[0][0]])]


def require_records(records: Sequence[Record]) -> None:
    if not records:
        raise ValueError("there are no records to report on: the list is empty; run a comparison first")
