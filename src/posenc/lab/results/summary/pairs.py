"""All pairs of encodings on a task: how far apart they are, how surely, and which is ahead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.lab.results.statistics import Comparison
from posenc.lab.results.summary import claims
from posenc.lab.results.summary.claims import Measure, task_measures
from posenc.lab.results.summary.formatting import DASH, label_list
from posenc.lab.results.summary.runs import Result, is_external
from posenc.lab.results.summary.tables import Cell

STANDINGS = {"ahead of": 1.0, "tied with": None, "behind": 0.0}
"""The standing of a row's encoding beside a column's, and its goodness."""


@dataclass(frozen=True)
class PairTable:
    """All pairs of encodings in one measure.

    measure   the name of the measure
    labels    of rows and columns: the user's own encodings first
    rows      whether the row's encoding is ahead of the column's, tied with it or behind; difference and interval
    """

    measure: str
    labels: list[str]
    rows: list[list[Cell]]

    def standing(self, label: str) -> str:
        """Return in words which encodings a label is ahead of, tied with and behind."""
        cells = self.rows[self.labels.index(label)]
        by_standing = [
            (text, [x for x, cell in zip(self.labels, cells, strict=True) if cell.text == text]) for text in STANDINGS
        ]
        return ", ".join(f"{text} {label_list(labels)}" for text, labels in by_standing if labels)


def pair_tables(results: Sequence[Result]) -> list[PairTable]:
    """Return a pair table of one task for each measure in which any pair was compared."""
    # Comparisons are memoised by the order of the results, so only the labels are sorted: the user's own first.
    learners = [result for result in results if result.learned]
    labels = [result.label for result in sorted(learners, key=lambda result: not is_external(result))]
    comparisons = [(measure, claims.compare_encodings(learners, measure)) for measure in task_measures(learners)]
    return [pair_table(measure, comparison, labels) for measure, comparison in comparisons if comparison.differences]


def pair_table(measure: Measure, comparison: Comparison, labels: list[str]) -> PairTable:
    differences = {(d.first, d.second): (d, d.mean) for d in comparison.differences}
    differences |= {(d.second, d.first): (d, -d.mean) for d in comparison.differences}
    # Shares differ by 1 at most.
    limit = 1.0 if measure.variance else math.inf

    def cell(row: str, column: str) -> Cell:
        if (row, column) not in differences:
            return Cell("" if row == column else DASH, is_missing=True)
        difference, mean = differences[row, column]
        ends = [max(-limit, min(limit, mean + side * difference.half_width)) for side in (-1, 1)]
        low, high = map(measure.format_signed, ends if measure.higher else reversed(ends))
        standing = ("ahead of" if mean > 0 else "behind") if comparison.is_significant(difference) else "tied with"
        return Cell(standing, f"{measure.format_signed(mean)}{measure.unit}, {low} to {high}", STANDINGS[standing])

    return PairTable(measure.name, labels, [[cell(row, column) for column in labels] for row in labels])
