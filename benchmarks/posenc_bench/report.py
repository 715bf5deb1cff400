"""Rows into tables: for a terminal, and in Markdown; and what they say about us, for better or worse."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc import foreign
from posenc_bench.goals import Found, verdicts

SCHEMA = 1

HEADERS = ("candidate", "", "quartiles", "error", "goal")
GOALS = ("", "", "goal", "measured", "met")


def cases(rows: Sequence[Found]) -> dict[tuple[str, str, int], list[Found]]:
    """(what, case, threads) -> its rows, in the order in which they were measured."""
    found: dict[tuple[str, str, int], list[Found]] = {}
    for row in rows:
        found.setdefault((row["what"], row["case"], row["threads"]), []).append(row)
    return found


def heading(what: str, case: str, threads: int) -> str:
    return f"{what}: {case}" + (f" ({threads} threads)" if threads > 1 else "")


def table(rows: Sequence[Found]) -> tuple[list[str], list[list[str]]]:
    """The headers and the lines of one case."""
    unit = next((row["unit"] for row in rows if row["unit"]), "")
    lines = []
    for row in rows:
        if row["value"] is None:
            lines.append([row["candidate"], row["note"], "", small(row["error"]), ""])
            continue
        goals = "; ".join(f"{verdict.goal}: {MET[verdict.met]}" for verdict in verdicts(row, rows))
        spread = "" if row["low"] == row["high"] else f"{number(row['low'])} to {number(row['high'])}"
        lines.append([row["candidate"], number(row["value"]), spread, small(row["error"]), goals])
    return ["candidate", unit, *HEADERS[2:]], lines


def tables(rows: Sequence[Found]) -> list[tuple[list[str], list[list[str]], str]]:
    """Headers, lines and title of every case."""
    return [(*table(found), heading(*key)) for key, found in cases(rows).items()]


MET = {True: "met", False: "missed", None: "not measured"}


def goals(rows: Sequence[Found]) -> tuple[list[str], list[list[str]]]:
    """Every goal beside what was measured."""
    lines = []
    for key, case in cases(rows).items():
        for row in case:
            for goal, measured, met in ((v.goal, v.measured, v.met) for v in verdicts(row, case)):
                if measured is None:
                    words = ""
                elif goal.of == "error":
                    words = small(measured)
                else:
                    # "At least 20 x as fast" is read the other way round than "at most 1.4 x".
                    words = number(1 / measured if goal.bound < 1 and goal.than else measured)
                lines.append([heading(*key), row["candidate"], str(goal), words, MET[met]])
    return list(GOALS), lines


def losses(rows: Sequence[Found]) -> list[str]:
    """What we lose at, in sentences: goals that were missed, and others that are faster at the same thing."""
    lines = []
    for case, candidate, goal, measured, met in goals(rows)[1]:
        if met == MET[False]:
            lines.append(f"{case}: {candidate} misses its goal, {goal}: {measured}")
    for key, found in cases(rows).items():
        for own in found:
            ahead = [other for other in found if is_ahead(other, own)]
            for other in ahead:
                share = other["value"] / own["value"]
                words = f"{number(share)} of the {'memory' if 'MiB' in own['unit'] else 'time'}"
                lines.append(f"{heading(*key)}: {other['candidate']} takes {words} of {own['candidate']}")
    return lines


def is_ahead(other: Found, own: Found) -> bool:
    """Whether somebody else does the same as one of ours, at a lower cost."""
    if own["kind"] != "posenc" or other["kind"] not in ("peer", "naive"):
        return False
    both = own["value"] is not None and other["value"] is not None
    return both and own["subject"] == other["subject"] and other["value"] < own["value"]


def markdown(result: Mapping[str, Any]) -> str:
    """A run as a page: the machine, the goals, what we lose at, and every case."""
    rows = result["rows"]
    parts = ["# Benchmark", facts(result)]
    if goals(rows)[1]:
        parts += ["## Goals", as_markdown(*goals(rows))]
    lost = losses(rows)
    parts += ["## What we lose at", "\n".join(f"- {line}" for line in lost) if lost else "Nothing that was measured."]
    for key, found in cases(rows).items():
        parts += [f"## {heading(*key)}", as_markdown(*table(found))]
    return "\n\n".join(parts) + "\n"


def save(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the results, the tables, and the plot where there is something to plot; the paths."""
    from posenc.lab import figures, store
    from posenc_bench import plot

    whole, tables = folder / "bench.json", folder / "bench.md"
    store.write(whole, (json.dumps(result) + "\n").encode())
    store.write(tables, markdown(result).encode())
    drawn = plot.cost(result)
    return [whole, tables] if drawn is None else [whole, tables, figures.save(drawn, folder / "cost.png")]


def read(path: Path) -> dict[str, Any]:
    """The results of an earlier run. Raises CannotRead, naming the file, for what is none."""
    result = foreign.read_json(path)
    if result.get("schema") == SCHEMA and isinstance(result.get("rows"), list):
        return result
    wrong = "it holds no results of this version's benchmark"
    raise foreign.CannotRead(wrong, file=path, remedy="make them with run.py bench")


def facts(result: Mapping[str, Any]) -> str:
    """The machine, the versions and the settings of a run, in two sentences."""
    machine, versions = result["hardware"], ", ".join(f"{name} {v}" for name, v in result["versions"].items())
    cores, memory = machine["cores"], machine["memory, GiB"]
    settings, busy = result["settings"], " to ".join(f"{load}" for load in result["load"])
    measured = f"Commit {result['commit']}. " if result.get("commit") else ""
    return (
        f"{measured}{machine['processor']}, {cores} cores, {machine['instruction set']}, {memory} GiB, "
        f"{machine['system']}; load {busy}; {result['began']}. {versions}.\n"
        f"Shapes: {settings['shapes']}. Medians of rounds in which all candidates took turns, over the limit of the "
        f"same round; one thread by its own CPU time."
    )


def as_markdown(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    drawn = [headers, ["---"] * len(headers), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in drawn)


def number(value: float) -> str:
    """Three figures, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def small(value: float | None) -> str:
    """An error, with its exponent."""
    return "" if value is None else f"{value:.1e}"
