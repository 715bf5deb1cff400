"""Format rows as terminal and Markdown tables, and list goals and losses."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc import foreign
from posenc_bench.goals import RowDict, verdicts

SCHEMA = 1

HEADERS = ("candidate", "", "quartiles", "error", "goal")
GOALS = ("", "", "goal", "measured", "met")


def cases(rows: Sequence[RowDict]) -> dict[tuple[str, str, int], list[RowDict]]:
    """Group rows by (what, case, threads), in the order of measurement."""
    by_case: dict[tuple[str, str, int], list[RowDict]] = {}
    for row in rows:
        by_case.setdefault((row["what"], row["case"], row["threads"]), []).append(row)
    return by_case


def heading(what: str, case: str, threads: int) -> str:
    return f"{what}: {case}" + (f" ({threads} threads)" if threads > 1 else "")


def table(rows: Sequence[RowDict]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and lines of one case."""
    unit = next((row["unit"] for row in rows if row["unit"]), "")
    lines = []
    for row in rows:
        if row["value"] is None:
            lines.append([row["candidate"], row["note"], "", small(row["error"]), ""])
            continue
        goals = "; ".join(f"{verdict.goal}: {VERDICT_WORDS[verdict.is_met]}" for verdict in verdicts(row, rows))
        quartiles = "" if row["low"] == row["high"] else f"{number(row['low'])} to {number(row['high'])}"
        lines.append([row["candidate"], number(row["value"]), quartiles, small(row["error"]), goals])
    return ["candidate", unit, *HEADERS[2:]], lines


def tables(rows: Sequence[RowDict]) -> list[tuple[list[str], list[list[str]], str]]:
    """Return the headers, lines and title of every case."""
    return [(*table(case), heading(*key)) for key, case in cases(rows).items()]


VERDICT_WORDS = {True: "met", False: "missed", None: "not measured"}


def goals(rows: Sequence[RowDict]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and lines of every goal with its measured value."""
    lines = []
    for key, case in cases(rows).items():
        for row in case:
            for goal, value, is_met in ((v.goal, v.measured_value, v.is_met) for v in verdicts(row, case)):
                if value is None:
                    words = ""
                elif goal.quantity == "error":
                    words = small(value)
                else:
                    # "At least 20 x as fast" uses the inverse ratio of "at most 1.4 x".
                    words = number(1 / value if goal.bound < 1 and goal.than else value)
                lines.append([heading(*key), row["candidate"], str(goal), words, VERDICT_WORDS[is_met]])
    return list(GOALS), lines


def losses(rows: Sequence[RowDict]) -> list[str]:
    """Return a sentence for each missed goal and each faster peer."""
    lines = []
    for case, candidate, goal, value, is_met in goals(rows)[1]:
        if is_met == VERDICT_WORDS[False]:
            lines.append(f"{case}: {candidate} misses its goal, {goal}: {value}")
    for key, case_rows in cases(rows).items():
        for row in case_rows:
            ahead = [peer_row for peer_row in case_rows if is_ahead(peer_row, row)]
            for peer_row in ahead:
                share = peer_row["value"] / row["value"]
                words = f"{number(share)} of the {'memory' if 'MiB' in row['unit'] else 'time'}"
                lines.append(f"{heading(*key)}: {peer_row['candidate']} takes {words} of {row['candidate']}")
    return lines


def is_ahead(peer_row: RowDict, row: RowDict) -> bool:
    """Return whether a peer or naive code computes the same at a lower cost."""
    if row["kind"] != "posenc" or peer_row["kind"] not in ("peer", "naive"):
        return False
    have_values = row["value"] is not None and peer_row["value"] is not None
    return have_values and row["subject"] == peer_row["subject"] and peer_row["value"] < row["value"]


def markdown(result: Mapping[str, Any]) -> str:
    """Return a run as a Markdown page: the machine, goals, losses, and every case."""
    rows = result["rows"]
    parts = ["# Benchmark", facts(result)]
    if goals(rows)[1]:
        parts += ["## Goals", as_markdown(*goals(rows))]
    parts += ["## What we lose at", "\n".join(f"- {line}" for line in losses(rows)) or "Nothing that was measured."]
    for key, case in cases(rows).items():
        parts += [f"## {heading(*key)}", as_markdown(*table(case))]
    return "\n\n".join(parts) + "\n"


def save(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the results, tables and any plot, and return their paths."""
    from posenc.lab import figures, store
    from posenc_bench import plot

    whole, tables = folder / "bench.json", folder / "bench.md"
    store.write(whole, (json.dumps(result) + "\n").encode())
    store.write(tables, markdown(result).encode())
    figure = plot.cost(result)
    return [whole, tables] if figure is None else [whole, tables, figures.save(figure, folder / "cost.png")]


def read(path: Path) -> dict[str, Any]:
    """Read the results of an earlier run. Raises CannotRead, naming the file, if it has none."""
    result = foreign.read_json(path)
    if result.get("schema") == SCHEMA and isinstance(result.get("rows"), list):
        return result
    wrong = "it holds no results of this version's benchmark"
    raise foreign.CannotRead(wrong, file=path, remedy="make them with run.py bench")


def facts(result: Mapping[str, Any]) -> str:
    """Return the machine, versions and settings of a run in two sentences."""
    machine, versions = result["hardware"], ", ".join(f"{name} {v}" for name, v in result["versions"].items())
    cores, memory = machine["cores"], machine["memory, GiB"]
    settings, busy = result["settings"], " to ".join(f"{load}" for load in result["load"])
    commit = f"Commit {result['commit']}. " if result.get("commit") else ""
    return (
        f"{commit}{machine['processor']}, {cores} cores, {machine['instruction set']}, {memory} GiB, "
        f"{machine['system']}; load {busy}; {result['began']}. {versions}.\n"
        f"Shapes: {settings['shapes']}. Medians of rounds in which all candidates took turns, over the limit of the "
        f"same round; one thread by its own CPU time."
    )


def as_markdown(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    rows = [headers, ["---"] * len(headers), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in rows)


def number(value: float) -> str:
    """Format a number with three significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def small(value: float | None) -> str:
    """Format an error in scientific notation."""
    return "" if value is None else f"{value:.1e}"
