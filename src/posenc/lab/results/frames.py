"""Records as tidy tables, one row for each measurement."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from posenc.foreign import near, quoted
from posenc.lab.results import summary
from posenc.lab.results.summary import Record, get
from posenc.lab.results.summary.runs import entries as entries_of

Row: TypeAlias = dict[str, Any]

KINDS = ("runs", "lengths", "depths", "curve", "ablation", "order", "records")

EXACT, TEXT = "exact_match", "bits_per_byte"


def load(folder: Path | str, what: str = "lengths") -> Any:
    """The results of a comparison as a tidy table of pandas: every row one measurement, every column one variable.

    folder  what `posenc compare` has filled
    what    a row for each run and tested length ("lengths"), run ("runs"), point of a learning curve ("curve"), place
            at which a task hides what it asks for ("depths"), damage to the positions ("ablation"), order test
            ("order"); or no table, but the records themselves, a list of dictionaries ("records")

    Every row says its run: key, task, encoding (the name in figures: the spec, and the settings in which its runs
    differ), spec, built (with all its options), seed, learned, trained_length (items), trained_tokens, parameters,
    encoding_parameters, steps, train_cpu_s, cpu_s, wall_s, steps_to_learned, cpu_s_to_learned (CPU seconds),
    in_distribution_* (the measures at the trained length), version_* and text_*, and every setting of the
    experiment, such as rate, batch and layers. Where a row has a number of its own under one of these names, the
    run's is called NAME_of_run. What is not known is NaN.

    "lengths" adds length, factor (of the trained length) and every measure: exact_match, token_accuracy (shares),
    bits_per_byte, sliding_bits_per_byte, perplexity_ratio. "depths": length, depth (share of the sequence),
    exact_match, token_accuracy, sequences. "curve": step, loss (nats), score (exact match, or for
    text bits per byte), cpu_s. "ablation": ablation, score and its measure. "order": attention, layers, position,
    equivariance, difference.

    Raises ValueError for another `what`, and for a folder without records; CannotRead for a damaged record;
    ModuleNotFoundError, which says what to install, where the library is missing.
    """
    # Records are read with torch, which the rest of this file does without.
    from posenc.lab.runs import record
    from posenc.lab.runs.settings import in_reading_order, read_settings

    if what not in KINDS:
        raise ValueError(f"what must be one of {', '.join(KINDS)}; got {quoted(what)}{near(what, KINDS)}")
    folder = Path(folder)
    # Tables hold no pictures.
    of_folder = record.read_all if what == "records" else record.for_summaries
    found = in_reading_order(of_folder(folder), read_settings(folder))
    return found if what == "records" else framed(rows(found, what))


def rows(records: Sequence[Record], what: str) -> list[Row]:
    """The rows of one kind, all with the same columns in the same order, and one type to a column."""
    found = []
    for label, run in summary.labelled(records):
        facts = of_run(label, run)
        for own in measured(run, what):
            taken = {f"{name}_of_run" if name in own else name: value for name, value in facts.items()}
            # What a row is about stands first: whose it is, then its own numbers, then all that is known of the run.
            head = {name: taken.pop(name) for name in ("task", "encoding", "seed", "learned")}
            found.append({**head, **own, **taken})
    names = dict.fromkeys(name for row in found for name in row)
    columns = {name: one_type([row.get(name) for row in found]) for name in names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def of_run(label: str, run: Record) -> Row:
    """What is known of a run as a whole."""
    facts = {
        "task": summary.task_of(run),
        "encoding": label,
        "seed": get(run, "experiment", "seed"),
        "learned": run.get("learned") is True,
        "key": get(run, "key"),
        "spec": summary.spec_of(run),
        "built": get(run, "encoding"),
        "trained_length": whole(summary.trained_length(run)),
        "trained_tokens": whole(summary.trained_tokens(run)),
        "parameters": get(run, "parameters", "model"),
        "encoding_parameters": get(run, "parameters", "encoding"),
    }
    facts |= {
        name: get(run, name)
        for name in ("steps", "train_cpu_s", "cpu_s", "wall_s", "steps_to_learned", "cpu_s_to_learned")
    }
    settings = {
        (f"{name}_asked" if name in facts else name): plain(value)
        for name, value in (get(run, "experiment") or {}).items()
        if name not in ("spec", "task", "seed", "train_length")
    }
    for group, prefix in (("in_distribution", "in_distribution"), ("text", "text"), ("versions", "version")):
        facts |= {f"{prefix}_{name}": plain(value) for name, value in (get(run, group) or {}).items()}
    return facts | settings


def measured(run: Record, what: str) -> list[Row]:
    """What each row of a run says of its own."""
    if what == "runs":
        return [{}]
    if what == "lengths":
        return [{name: plain(value) for name, value in entry.items()} for entry in entries_of(run)]
    if what == "ablation":
        measure = TEXT if summary.is_text(run) else EXACT
        found = get(run, "ablation") or {}
        return [{"ablation": kind, "score": summary.number(x), "measure": measure} for kind, x in found.items()]
    entries = get(run, what)
    return [
        {name: plain(value) for name, value in entry.items()}
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    ]


def whole(count: float | None) -> float | None:
    return int(count) if count is not None and float(count).is_integer() else count


def plain(value: Any) -> Any:
    """A value that fits into a cell: lists and dictionaries as words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(inner)}" for name, inner in value.items())
    return " ".join(str(plain(inner)) for inner in value) if isinstance(value, (list, tuple)) else value


def one_type(values: list[Any]) -> list[Any]:
    """A column in one type: whole numbers beside others become floats, anything beside words becomes words."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    into = float if kinds <= {int, float} else str
    return [None if value is None else into(value) for value in values]


def needed(module: str, extra: str) -> Any:
    """A library, imported now. Raises ModuleNotFoundError, which says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(
            f"this needs {module}, which is not installed: pip install 'posenc[{extra}]'", name=module
        ) from None


def framed(found: Sequence[Row]) -> Any:
    """Rows as a table of pandas; a column of which nothing is known holds floats."""
    names = list(found[0]) if found else []
    columns = {name: [row[name] for row in found] for name in names}
    unknown = [name for name, values in columns.items() if all(value is None for value in values)]
    return needed("pandas", "lab").DataFrame(columns).astype(dict.fromkeys(unknown, float))
