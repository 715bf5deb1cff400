"""Verdicts on published claims as tables for a terminal, and as one page of a folder of them."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.foreign import CannotRead
from posenc.lab.published import CLAIMS, claim_of
from posenc.lab.reproduction.reproduce import NOT_LEARNED, file_of, read

PAGE = "README.md"

ABOUT = """# Published results, run again

Claims of papers, each run again small with three seeds, and judged by inequalities that were written down before these
seeds were run. A line holds where it holds with every seed. This page is written by `posenc lab page`, from the files
beside it; [the guide](../guides/published-results.md) says how to run one.
"""

Verdict = Mapping[str, Any]


def numbers_table(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of what was published and what came out here, the median over seeds with its range."""
    rows = [[one["name"], number(one["published"]), with_range(one["here"])] for one in verdict["numbers"]]
    return ["", "published", "here"], rows


def criteria_table(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the inequalities: measured, bound, and what came of each."""
    rows = [
        [one["words"], with_range(one["measured"]), with_range(one["bounds"]), one["verdict"]]
        for one in verdict["criteria"]
    ]
    return ["inequality", "measured", "bound", "verdict"], rows


def list_table() -> tuple[list[str], list[list[str]]]:
    """Headers and rows of all claims that ship."""
    return ["claim", "says", "source"], [[name, (one := claim_of(name)).says, one.source] for name in CLAIMS]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def with_range(values: Sequence[float | None]) -> str:
    """The median and the range of what is known; in how many seeds it is not."""
    known = [value for value in values if value is not None]
    if not known:
        return NOT_LEARNED if values else "-"
    low, high = number(min(known)), number(max(known))
    words = number(statistics.median(known)) + (f" ({low} to {high})" if low != high else "")
    return words if len(known) == len(values) else f"{words}; {NOT_LEARNED} with {len(values) - len(known)}"


def page(folder: Path) -> str:
    """The page of the verdicts in a folder, in Markdown.

    Raises ValueError where there are none, CannotRead for one that is damaged or lies under another name.
    """
    found = []
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")]):
        found.append(read(path))
        if path.name.removesuffix(".gz") != file_of(found[-1]):
            raise CannotRead(f"it holds the verdict of {file_of(found[-1])}; give it that name", file=path)
    if not found:
        raise ValueError(f"no verdicts in '{folder}'; make one with posenc lab run NAME, and put its JSON file there")
    by_claim = {name: [one for one in found if one["claim"] == name] for name in sorted({v["claim"] for v in found})}
    short = [
        [f"[{name}](#{name})", of[0]["says"], "; ".join(f"{one['verdict']} ({told(one)})" for one in of)]
        for name, of in by_claim.items()
    ]
    parts = [ABOUT, markdown(["claim", "says", "verdict (seeds)"], short)]
    for name, of in by_claim.items():
        parts += [f"## {name}", f"{of[0]['says'][:1].upper()}{of[0]['says'][1:]}. Source: {of[0]['source']}."]
        for one in of:
            parts.append(f"**{one['verdict'].capitalize()}** with {told(one)}: {one['why']}.")
            parts += [markdown(*numbers_table(one)), markdown(*criteria_table(one)), f"`{one['command']}`, {made(one)}"]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def told(verdict: Verdict) -> str:
    """On which seeds a verdict rests, and where it was run."""
    seeds = verdict["seeds"]
    return f"seeds {seeds[0]} to {seeds[-1]}, {verdict['tier']}"


def made(verdict: Verdict) -> str:
    """What a verdict took, and what it was made with."""
    versions = verdict["versions"]
    return (
        f"{verdict['cpu_s']:.0f} CPU s of training, posenc {versions['posenc']}, torch {versions['torch']}, "
        f"Python {versions['python']}"
    )


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
