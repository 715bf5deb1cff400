"""The runs of a comparison put together: one result for each encoding and task, over its seeds."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from posenc.lab.results import statistics
from posenc.lab.results.statistics import Spread
from posenc.specs.plugins import plugins_in

if TYPE_CHECKING:
    import numpy as np

Record: TypeAlias = dict[str, Any]

NOT_LEARNED = "not learned"
SEQUENCES = 512
"""Held-out sequences behind an exact match of a record that does not say how many there were."""


def get(record: Any, *path: str) -> Any:
    """What stands at a path of keys, or None where the record does not have it."""
    for key in path:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def number(value: Any) -> float | None:
    """The value as a float; None for what is not a number, NaN included: a score that failed is no score."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return float(value)


def numbers(values: Any) -> "np.ndarray":
    """An array of floats in which everything that is not a finite number is NaN, which is drawn as nothing."""
    import numpy as np

    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return np.empty(0)
    return np.where(np.isfinite(array), array, np.nan)


def over_seeds(values: Iterable[Any], *, sequences: int | None = None) -> Spread | None:
    """The spread of those values that are numbers, or None if there are none."""
    known = [x for x in map(number, values) if x is not None]
    shares = all(0 <= x <= 1 for x in known)
    return statistics.spread(known, sequences=sequences if shares else None)


@dataclass(frozen=True, eq=False)
class Result:
    """One encoding on one task: its runs, one for each seed."""

    label: str
    task: str
    runs: list[Record]
    made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """A value that is computed from these runs, memoised under a name."""
        if what not in self.made:
            self.made[what] = make()
        return self.made[what]

    @cached_property
    def learned(self) -> list[Record]:
        """The runs that passed the gate; only these may speak about lengths and speed."""
        return [run for run in self.runs if run.get("learned") is True]

    @property
    def is_text(self) -> bool:
        return any(is_text(run) for run in self.runs)

    @property
    def trained_length(self) -> float | None:
        return next((x for x in map(trained_length, self.runs) if x is not None), None)

    def spread(self, *path: str) -> Spread | None:
        """Over the runs that learned."""
        return self.once(path, lambda: over_seeds(get(run, *path) for run in self.learned))

    def spread_of_all(self, *path: str) -> Spread | None:
        return over_seeds(get(run, *path) for run in self.runs)

    def in_range(self) -> Spread | None:
        """Exact match at the trained length, which the gate looks at: over all runs."""
        scores = [get(run, "in_distribution", "exact_match") for run in self.runs]
        return over_seeds(scores, sequences=sequences(e for run in self.runs for e in entries(run)[:1]))

    def lengths(self) -> list[tuple[float, float | None]]:
        """Every measured (length, factor of the trained length), shortest first."""
        return sorted(self.factors.items())

    @cached_property
    def factors(self) -> dict[float, float | None]:
        found: dict[float, float | None] = {}
        for run in self.runs:
            for entry in entries(run):
                found.setdefault(entry["length"], number(get(entry, "factor")))
        return found

    @cached_property
    def learned_entries(self) -> dict[float, list[dict[str, Any]]]:
        """By length, the entries of the runs that learned."""
        found: dict[float, list[dict[str, Any]]] = {}
        for run in self.learned:
            for entry in entries(run):
                found.setdefault(entry["length"], []).append(entry)
        return found

    def at(self, length: float, measure: str) -> Spread | None:
        """One measure at one length, over the runs that learned."""
        return self.once((length, measure), lambda: self.spread_at(length, measure))

    def spread_at(self, length: float, measure: str) -> Spread | None:
        found = self.learned_entries.get(length, [])
        within = sequences(found) if measure == "exact_match" else None
        return over_seeds((get(entry, measure) for entry in found), sequences=within)

    def beyond(self, measure: str) -> list[tuple[float, float, Spread]]:
        """(length, factor, spread) at every length longer than trained at which the measure is known."""
        found = [
            (length, factor, self.at(length, measure)) for length, factor in self.lengths() if factor and factor > 1
        ]
        return [(length, factor, spread) for length, factor, spread in found if spread is not None]

    @property
    def spec(self) -> str:
        return spec_of(self.runs[0])

    def seeds(self) -> str:
        """How many learned, in words, where that needs saying."""
        if len(self.learned) == len(self.runs):
            return ""
        return f"{len(self.learned)} of {len(self.runs)} learned" if self.learned else NOT_LEARNED


def entries(run: Record) -> list[dict[str, Any]]:
    """The length entries that have a length."""
    found = get(run, "lengths")
    return [e for e in found if number(get(e, "length")) is not None] if isinstance(found, list) else []


def sequences(found: Iterable[dict[str, Any]]) -> int:
    """How many held-out sequences stand behind the exact match of length entries; the fewest, where they differ."""
    given = [x for entry in found if (x := number(get(entry, "sequences"))) is not None and x >= 1]
    return int(min(given, default=SEQUENCES))


def trained_length(run: Record) -> float | None:
    given = number(get(run, "experiment", "train_length"))
    return given if given is not None else next((number(e["length"]) for e in entries(run)), None)


def trained_tokens(run: Record) -> float | None:
    """How many positions training has shown: the tokens of the longest sequence, of which an item may take several."""
    given = number(get(run, "trained_tokens"))
    return given if given is not None else trained_length(run)


def worth(run: Record) -> tuple[bool, float]:
    """What a run speaks for its encoding by: one that learned before others, then the one that saw most positions."""
    return run.get("learned") is True, trained_tokens(run) or 0.0


def is_text(run: Record) -> bool:
    """Whether the run is measured in bits per byte, where lower is better, and not in exact match."""
    return number(get(run, "in_distribution", "exact_match")) is None and get(run, "text") is not None


def trained_lengths(found: Sequence[Result]) -> list[float]:
    return sorted({x for result in found if (x := result.trained_length) is not None})


def spec_of(run: Record) -> str:
    spec = get(run, "experiment", "spec") or get(run, "encoding") or "unnamed"
    # Specs that are cycled over the layers.
    return " / ".join(map(str, spec)) if isinstance(spec, (list, tuple)) else str(spec)


def is_own(result: "Result") -> bool:
    """Whether an encoding is not one of ours: of a file, or of another package."""
    spec = result.spec
    return ".py:" in spec or not plugins_in("posenc.encodings").keys().isdisjoint(re.findall(r"\w+", spec))


def task_of(run: Record) -> str:
    return str(get(run, "experiment", "task") or "unnamed task")


def distinct(records: Sequence[Record]) -> list[Record]:
    """The records, a later one with the same key taking the place of an earlier one."""
    kept: dict[Any, Record] = {}
    for place, record in enumerate(records):
        kept[get(record, "key") or place] = record
    return list(kept.values())


class Settled(list[Record]):
    """Records that stay as they are while a page is written: what every part of it asks for is put together once."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__(records)
        self.by_label = labelled(list(self))
        self.by_task: dict[str, list[Result]] = {}
        for result in results_of(self.by_label):
            self.by_task.setdefault(result.task, []).append(result)


def labelled(records: Sequence[Record]) -> list[tuple[str, Record]]:
    """Each record with the name that it goes by: its label or spec, and the settings in which its runs differ.

    A label that two specs have is none.
    """
    if isinstance(records, Settled):
        return records.by_label
    records = distinct(records)

    def settings(run: Record) -> dict[str, Any]:
        experiment = get(run, "experiment") or {}
        return {name: value for name, value in experiment.items() if name not in ("spec", "task", "seed")}

    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in records:
        # Most runs of a group have the same settings, and are over with one comparison.
        different = groups.setdefault((spec_of(run), task_of(run)), [])
        different += [settings(run)] if settings(run) not in different[:1] else []
    differ: dict[str, dict[str, None]] = {spec: {} for spec, _ in groups}
    for (spec, _), different in groups.items():
        for name in dict.fromkeys(name for one in different for name in one):
            if len({json.dumps(one.get(name), default=str) for one in different}) > 1:
                differ[spec][name] = None
    given = {spec_of(run): str(label) for run in records if (label := get(run, "label"))}
    labelled_by = Counter([*given.values(), *(spec for spec in differ if spec not in given)])
    out = []
    for run in records:
        spec, values = spec_of(run), settings(run)
        label = given.get(spec, spec) if labelled_by[given.get(spec, spec)] == 1 else spec
        extra = ", ".join(f"{name}={values[name]}" for name in differ[spec] if values.get(name) is not None)
        out.append((f"{label} [{extra}]" if extra else label, run))
    return out


def labels(records: Sequence[Record]) -> list[str]:
    """The names of all encodings, in order of appearance."""
    return list(dict.fromkeys(label for label, _ in labelled(records)))


def tasks(records: Sequence[Record]) -> list[str]:
    """The tasks, in order of appearance."""
    return list(dict.fromkeys(task_of(run) for run in records))


def results(records: Sequence[Record], task: str | None = None) -> list[Result]:
    """One result for each encoding and task, in order of appearance."""
    if isinstance(records, Settled):
        wanted = records.by_task if task is None else [task]
        return [result for name in wanted for result in records.by_task.get(name, [])]
    return results_of([(label, run) for label, run in labelled(records) if task is None or task_of(run) == task])


def results_of(found: Sequence[tuple[str, Record]]) -> list[Result]:
    """One result for each encoding and task of labelled records; the tasks in order of appearance."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for label, run in found:
        groups.setdefault((task_of(run), label), []).append(run)
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in groups))}
    return [Result(label, name, runs) for (name, label), runs in sorted(groups.items(), key=lambda x: order[x[0][0]])]


def need_records(records: Sequence[Record]) -> None:
    if not records:
        raise ValueError("there are no records to report on: the list is empty; run a comparison first")
