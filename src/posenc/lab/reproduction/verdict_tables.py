"""Show verdicts on published claims as tables for a terminal, and as the page of a folder."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead
from posenc.lab.published import CLAIMS, claim_of
from posenc.lab.reproduction.reproduce import NOT_LEARNED, read, verdict_file

PAGE = "README.md"

PAGE_INTRODUCTION = """# Published results, run again

Claims of papers, each run again small with three seeds, and judged by inequalities that were written down before these
seeds were run. A line holds where it holds with every seed. This page is written by `posenc lab page`, from the files
beside it; [the guide](../guides/published-results.md) says how to run one.
"""

Verdict = Mapping[str, Any]


def numbers_table(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the published numbers and the measured medians with their ranges."""
    rows = [[row["name"], format_value(row["published"]), range_text(row["here"])] for row in verdict["numbers"]]
    return ["", "published", "here"], rows


def criteria_table(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the inequalities: measured, bound and verdict."""
    rows = [
        [line["words"], range_text(line["measured"]), range_text(line["bounds"]), line["verdict"]]
        for line in verdict["criteria"]
    ]
    return ["inequality", "measured", "bound", "verdict"], rows


def list_table() -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of all built-in claims."""
    return ["claim", "says", "source"], [[name, (claim := claim_of(name)).says, claim.source] for name in CLAIMS]


def format_value(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def range_text(values: Sequence[float | None]) -> str:
    """Return the median and range of the values, and the number of seeds without one."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return NOT_LEARNED if values else "-"
    low, high = format_value(min(numbers)), format_value(max(numbers))
    words = format_value(statistics.median(numbers)) + (f" ({low} to {high})" if low != high else "")
    return words if len(numbers) == len(values) else f"{words}; {NOT_LEARNED} with {len(values) - len(numbers)}"


def verdict_page(folder: Path) -> str:
    """Return the Markdown page of the verdicts in a folder.

    Raises ValueError if there are none, CannotRead for a damaged file or one with another name.
    """
    verdicts = []
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")]):
        verdicts.append(read(path))
        if path.name.removesuffix(".gz") != verdict_file(verdicts[-1]):
            raise CannotRead(f"it holds the verdict of {verdict_file(verdicts[-1])}; give it that name", file=path)
    if not verdicts:
        raise ValueError(f"no verdicts in '{folder}'; make one with posenc lab run NAME, and put its JSON file there")
    by_claim = {name: [v for v in verdicts if v["claim"] == name] for name in sorted({v["claim"] for v in verdicts})}
    overview = [
        [f"[{name}](#{name})", group[0]["says"], "; ".join(f"{v['verdict']} ({seeds_text(v)})" for v in group)]
        for name, group in by_claim.items()
    ]
    parts = [PAGE_INTRODUCTION, left_aligned_table(["claim", "says", "verdict (seeds)"], overview)]
    for name, group in by_claim.items():
        parts += [f"## {name}", f"{group[0]['says'][:1].upper()}{group[0]['says'][1:]}. Source: {group[0]['source']}."]
        for verdict in group:
            parts.append(f"**{verdict['verdict'].capitalize()}** with {seeds_text(verdict)}: {verdict['why']}.")
            tables = numbers_table(verdict), criteria_table(verdict)
            parts += [*(left_aligned_table(*t) for t in tables), f"`{verdict['command']}`, {run_text(verdict)}"]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def seeds_text(verdict: Verdict) -> str:
    """Return the seeds and the tier of a verdict."""
    seeds = verdict["seeds"]
    return f"seeds {seeds[0]} to {seeds[-1]}, {verdict['tier']}"


def run_text(verdict: Verdict) -> str:
    """Return the CPU time and the versions of a verdict."""
    versions = verdict["versions"]
    return (
        f"{verdict['cpu_s']:.0f} CPU s of training, posenc {versions['posenc']}, torch {versions['torch']}, "
        f"Python {versions['python']}"
    )


def left_aligned_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
