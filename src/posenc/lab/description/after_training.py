"""What an encoding looks like after training, from the records of runs."""

from pathlib import Path
from typing import Any

from posenc.foreign import near, quoted
from posenc.lab import load
from posenc.lab.description.pictures import Drawn, of_positions
from posenc.lab.results import figure_tables, figures, summary


def add(drawn: Drawn, spec: str, built: str, folder: Path) -> None:
    """The trained numbers of an encoding, one run for each task of a folder: one that learned, where there is one.

    Raises ValueError where no run has this encoding, and what `load` raises.
    """
    records = summary.legible(load(folder, what="records"))
    found = [run for run in records if spec == summary.spec_of(run) or built == str(run.get("encoding"))]
    if not found:
        known = list(dict.fromkeys(summary.spec_of(run) for run in records))
        raise ValueError(
            f"no run of {quoted(spec)} in {folder}; it has {', '.join(known)}{near(spec, known)}; train it with "
            f"posenc compare --encodings {spec} --out {folder}"
        )
    for result in summary.results(found):
        run = next(iter([*result.learned, *result.runs]))
        add_run(drawn, run, f"trained on {result.task}, seed {summary.get(run, 'experiment', 'seed')}", result.task)
        if not result.learned:
            drawn.notes.append(f"On {result.task} no run has learned: its pictures say nothing about the task.")


def add_run(drawn: Drawn, run: dict[str, Any], when: str, task: str) -> None:
    spec, before = summary.spec_of(run), len(drawn.figures)
    pictures = summary.get(run, "pictures") or {}
    table = summary.numbers(pictures.get("added") or [])
    if table.ndim == 2 and table.size:
        drawn.figures |= {f"{name}-{task}": figure for name, figure in of_positions(table, spec, f", {when}").items()}
    bias = pictures.get("bias")
    if bias:
        title = f"{spec}: bias by distance, each head, {when}"
        drawn.figures[f"bias-{task}"] = figures.bias_curves(bias["distance"], bias["heads"], title)
    if maps := figures.attention(run, title=f"{spec}, {when}: where each head looks"):
        drawn.figures[f"attention-{task}"] = maps
        drawn.tables.append((f"Mean attention weights, {when}", *figure_tables.attention(run)))
    drawn.facts.setdefault("trained", []).append({"key": run.get("key"), "task": task, **pictures})
    if len(drawn.figures) == before:
        drawn.notes.append(f"The record of {spec}, {when}, keeps no picture of it.")
