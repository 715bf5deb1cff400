"""Figures of an encoding after training, from the records of runs."""

from pathlib import Path
from typing import Any

from posenc.foreign import quote, suggestion
from posenc.lab import load
from posenc.lab.description.pictures import Gallery, table_figures
from posenc.lab.results import figure_tables, figures, summary


def add_trained_pictures(gallery: Gallery, spec: str, built_name: str, folder: Path) -> None:
    """Add an encoding's trained numbers from one run of each task, if possible one that learned.

    Raises ValueError where no run has this encoding, and as `load` does.
    """
    records = summary.for_display(load(folder, what="records"))
    runs = [run for run in records if spec == summary.spec_of(run) or built_name == str(run.get("encoding"))]
    if not runs:
        specs = list(dict.fromkeys(summary.spec_of(run) for run in records))
        raise ValueError(
            f"no run of {quote(spec)} in {folder}; it has {', '.join(specs)}{suggestion(spec, specs)}; train it with "
            f"posenc compare --encodings {spec} --out {folder}"
        )
    for result in summary.results(runs):
        run = next(iter([*result.learned, *result.runs]))
        add_run(gallery, run, f"trained on {result.task}, seed {summary.get(run, 'experiment', 'seed')}", result.task)
        if not result.learned:
            gallery.notes.append(f"On {result.task} no run has learned: its pictures say nothing about the task.")


def add_run(gallery: Gallery, run: dict[str, Any], when: str, task: str) -> None:
    spec, figure_count = summary.spec_of(run), len(gallery.figures)
    pictures = summary.get(run, "pictures") or {}
    table = summary.float_array(pictures.get("added") or [])
    if table.ndim == 2 and table.size:
        gallery.figures |= {
            f"{name}-{task}": figure for name, figure in table_figures(table, spec, f", {when}").items()
        }
    bias = pictures.get("bias")
    if bias:
        title = f"{spec}: bias by distance, each head, {when}"
        gallery.figures[f"bias-{task}"] = figures.bias_curves(bias["distance"], bias["heads"], title)
    if maps := figures.attention(run, title=f"{spec}, {when}: where each head looks"):
        gallery.figures[f"attention-{task}"] = maps
        gallery.tables.append((f"Mean attention weights, {when}", *figure_tables.attention(run)))
    gallery.facts.setdefault("trained", []).append({"key": run.get("key"), "task": task, **pictures})
    if len(gallery.figures) == figure_count:
        gallery.notes.append(f"The record of {spec}, {when}, keeps no picture of it.")
