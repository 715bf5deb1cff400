"""Compare two results: what became cheaper, more expensive, or stayed within its spread."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posenc.lab import figures, store
from posenc.lab.appearance import short
from posenc_bench import report
from posenc_bench.goals import RowDict, verdicts

MAX_ROWS = 60
"""The largest number of rows in the figure; the table has all."""

HEADERS = ("case", "candidate", "unit", "before", "after", "after / before", "", "goals, after")


@dataclass(frozen=True)
class Pair:
    """A row of posenc's that both results contain.

    goals  the row's goals, as met or missed in the second result
    """

    before: RowDict
    after: RowDict
    goals: tuple[str, ...]

    @property
    def change(self) -> float:
        return self.after["value"] / self.before["value"] if self.before["value"] else float("nan")

    @property
    def word(self) -> str:
        """Return "better", "worse" or "" (the quartiles overlap)."""
        if self.after["high"] < self.before["low"]:
            return "better"
        return "worse" if self.after["low"] > self.before["high"] else ""


def pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Pair]:
    """Return posenc's rows found in both results, in the order of the second."""

    def key(row: RowDict) -> tuple[Any, ...]:
        return row["what"], row["case"], row["candidate"], row["threads"], row["unit"]

    old_rows = {key(row): row for row in before["rows"] if row["value"] is not None}
    matches = []
    for case in report.cases(after["rows"]).values():
        for row in case:
            if row["kind"] == "posenc" and row["value"] is not None and key(row) in old_rows:
                goals = (f"{verdict.goal}: {report.VERDICT_WORDS[verdict.is_met]}" for verdict in verdicts(row, case))
                matches.append(Pair(old_rows[key(row)], row, tuple(goals)))
    return matches


def lines(matches: Sequence[Pair]) -> Iterator[list[str]]:
    for pair in matches:
        row = pair.after
        place = [report.heading(row["what"], row["case"], row["threads"]), row["candidate"], row["unit"]]
        numbers = [report.number(value) for value in (pair.before["value"], row["value"], pair.change)]
        yield [*place, *numbers, pair.word, "; ".join(pair.goals)]


def markdown(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return both runs as a Markdown page."""
    matches = pairs(before, after)
    counts = {word: sum(pair.word == word for pair in matches) for word in ("better", "worse")}
    missed = [row for row in report.goals(after["rows"])[1] if row[-1] == report.VERDICT_WORDS[False]]
    parts = [
        "# Two results of the benchmark",
        f"Of {len(matches)} rows in both, {counts['better']} became cheaper and {counts['worse']} dearer, beyond "
        f"the quartiles of both; the others cannot be told apart. {len(missed)} goals are missed afterwards. A ratio "
        f"to a limit of the same run bears a change of machine, seconds and MiB do not.",
        f"Before: {report.facts(before)}",
        f"After: {report.facts(after)}",
        report.as_markdown(HEADERS, lines(matches)),
    ]
    return "\n\n".join(parts) + "\n"


@figures.styled
def change_figure(before: Mapping[str, Any], after: Mapping[str, Any]) -> Figure | None:
    """Draw before and after for the rows that changed most. None if no shared row is relative to a limit."""
    matches = [pair for pair in pairs(before, after) if pair.after["unit"].startswith("x ")]
    matches = sorted(matches, key=lambda pair: pair.change)
    if len(matches) > MAX_ROWS:
        # The rows in the middle hardly changed.
        matches = matches[: MAX_ROWS // 2] + matches[-(MAX_ROWS - MAX_ROWS // 2) :]
    if not matches:
        return None
    fig = figures.figure(9.0, 1.4 + 0.19 * len(matches), "Cost of a call over its limit, before (ring) and after (dot)")
    ax = fig.subplots()
    draw(ax, matches)
    return fig


def draw(ax: Axes, matches: Sequence[Pair]) -> None:
    for height, pair in enumerate(reversed(matches)):
        then, now = pair.before["value"], pair.after["value"]
        colour = figures.INK if pair.word else figures.SOFT
        ax.plot([then, now], [height, height], color=colour, linewidth=1.2)
        ax.plot([then], [height], "o", color=colour, markerfacecolor=figures.PAPER, markersize=4)
        ax.plot([now], [height], "o", color=colour, markersize=4)
    names = [f"{short(pair.after['candidate'], 34)}, {short(pair.after['case'], 46)}" for pair in matches]
    ax.set_yticks(range(len(matches)), reversed(names), fontsize=6)
    ax.set_xscale("log")
    figures.plain_log(ax.xaxis)
    ax.set_xlabel("times the limit of the same round")
    ax.set_ylim(-1, len(matches))


def save(before: Mapping[str, Any], after: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the page and the figure, and return their paths."""
    page = folder / "compared.md"
    store.write(page, markdown(before, after).encode())
    fig = change_figure(before, after)
    return [page] if fig is None else [page, figures.save(fig, folder / "compared.png")]
