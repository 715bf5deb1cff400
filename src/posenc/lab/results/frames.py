"""Convert records to tidy tables, one row for each measurement."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from posenc.foreign import quote, suggestion
from posenc.lab.results import summary
from posenc.lab.results.summary import Record, get
from posenc.lab.results.summary.runs import entries as entries_of

Row: TypeAlias = dict[str, Any]

KINDS = ("runs", "lengths", "depths", "curve", "ablation", "order", "records")

EXACT, TEXT = "exact_match", "bits_per_byte"


def load(folder: Path | str, what: str = "lengths") -> Any:
    """Return a comparison's results as a tidy pandas table: a row is a measurement, a column a variable.

    folder  the output folder of `posenc compare`
    what    a row for each run and tested length ("lengths"), run ("runs"), point of a learning curve ("curve"), place
            of the answer in a text ("depths"), ablation of the positions ("ablation"), order test ("order"); or no
            table, but the list of records ("records")

    Every row has the columns of its run: key, task, encoding (the spec, and the settings in which its runs differ),
    spec, built (with all its options), seed, learned, trained_length (items), trained_tokens, parameters,
    encoding_parameters, steps, train_cpu_s, cpu_s, wall_s, steps_to_learned, cpu_s_to_learned (CPU seconds),
    in_distribution_* (the measures at the trained length), version_* and text_*, and every setting of the
    experiment, such as rate, batch and layers. If a measurement has one of these names too, the run's column is
    called NAME_of_run. Missing values are NaN.

    "lengths" adds length, factor (of the trained length) and every measure: exact_match, token_accuracy (shares),
    bits_per_byte, sliding_bits_per_byte, perplexity_ratio. "depths": length, depth (share of the sequence),
    exact_match, token_accuracy, sequences. "curve": step, loss (nats), score (exact match, or for
    text bits per byte), cpu_s. "ablation": ablation, score and its measure. "order": attention, layers, position,
    equivariance, difference.

    Raises ValueError for another `what`, and for a folder without records; CannotRead for a damaged record;
    ModuleNotFoundError, which says what to install, where the library is missing.
    """
    # These modules import torch, which the rest of this file does not need.
    from posenc.lab.runs import record
    from posenc.lab.runs.settings import read_settings, sort_by_settings

    if what not in KINDS:
        raise ValueError(f"what must be one of {', '.join(KINDS)}; got {quote(what)}{suggestion(what, KINDS)}")
    folder = Path(folder)
    # Tables have no pictures.
    read_records = record.read_all if what == "records" else record.summary_records
    records = sort_by_settings(read_records(folder), read_settings(folder))
    return records if what == "records" else data_frame(rows(records, what))


def rows(records: Sequence[Record], kind: str) -> list[Row]:
    """Return the rows of one kind, with the same columns in the same order, each of one type."""
    table_rows = []
    for label, run in summary.labelled_records(records):
        run_values = run_columns(label, run)
        for values in measurement_rows(run, kind):
            remaining = {f"{name}_of_run" if name in values else name: value for name, value in run_values.items()}
            # The identity of the run comes first, then the measurement, then the rest of the run.
            head = {name: remaining.pop(name) for name in ("task", "encoding", "seed", "learned")}
            table_rows.append({**head, **values, **remaining})
    names = dict.fromkeys(name for row in table_rows for name in row)
    columns = {name: unify_types([row.get(name) for row in table_rows]) for name in names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def run_columns(label: str, run: Record) -> Row:
    """Return the columns of a run."""
    columns = {
        "task": summary.task_of(run),
        "encoding": label,
        "seed": get(run, "experiment", "seed"),
        "learned": run.get("learned") is True,
        "key": get(run, "key"),
        "spec": summary.spec_of(run),
        "built": get(run, "encoding"),
        "trained_length": as_whole_number(summary.trained_length(run)),
        "trained_tokens": as_whole_number(summary.trained_tokens(run)),
        "parameters": get(run, "parameters", "model"),
        "encoding_parameters": get(run, "parameters", "encoding"),
    }
    columns |= {
        name: get(run, name)
        for name in ("steps", "train_cpu_s", "cpu_s", "wall_s", "steps_to_learned", "cpu_s_to_learned")
    }
    settings = {
        (f"{name}_asked" if name in columns else name): cell_value(value)
        for name, value in (get(run, "experiment") or {}).items()
        if name not in ("spec", "task", "seed", "train_length")
    }
    for group, prefix in (("in_distribution", "in_distribution"), ("text", "text"), ("versions", "version")):
        columns |= {f"{prefix}_{name}": cell_value(value) for name, value in (get(run, group) or {}).items()}
    return columns | settings


def measurement_rows(run: Record, table: str) -> list[Row]:
    """Return the measurements of one kind in a run."""
    if table == "runs":
        return [{}]
    if table == "lengths":
        return [{name: cell_value(value) for name, value in entry.items()} for entry in entries_of(run)]
    if table == "ablation":
        measure = TEXT if summary.is_text(run) else EXACT
        scores = get(run, "ablation") or {}
        return [{"ablation": kind, "score": summary.number(x), "measure": measure} for kind, x in scores.items()]
    entries = get(run, table)
    return [
        {name: cell_value(value) for name, value in entry.items()}
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    ]


def as_whole_number(count: float | None) -> float | None:
    return int(count) if count is not None and float(count).is_integer() else count


def cell_value(value: Any) -> Any:
    """Return a value for a cell: lists and dictionaries become text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell_value(inner)}" for name, inner in value.items())
    return " ".join(str(cell_value(inner)) for inner in value) if isinstance(value, (list, tuple)) else value


def unify_types(values: list[Any]) -> list[Any]:
    """Convert a column to one type: integers beside floats become floats, anything beside strings a string."""
    types = {type(value) for value in values if value is not None}
    if len(types) < 2:
        return values
    convert = float if types <= {int, float} else str
    return [None if value is None else convert(value) for value in values]


def import_library(module: str, extra: str) -> Any:
    """Import a library. Raises ModuleNotFoundError, which says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(
            f"this needs {module}, which is not installed: pip install 'posenc[{extra}]'", name=module
        ) from None


def data_frame(table_rows: Sequence[Row]) -> Any:
    """Return rows as a pandas table; a column without values has floats."""
    names = list(table_rows[0]) if table_rows else []
    columns = {name: [row[name] for row in table_rows] for name in names}
    unknown = [name for name, values in columns.items() if all(value is None for value in values)]
    return import_library("pandas", "lab").DataFrame(columns).astype(dict.fromkeys(unknown, float))
