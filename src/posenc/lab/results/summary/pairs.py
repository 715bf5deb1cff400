"""Every encoding against every other one on a task: how far apart they are, how surely, and which is ahead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.lab.results.statistics import Comparison
from posenc.lab.results.summary import claims
from posenc.lab.results.summary.claims import Measure, measures_of
from posenc.lab.results.summary.runs import Result, is_own
from posenc.lab.results.summary.tables import Cell
from posenc.lab.results.summary.words import NOTHING, listed, name

WORDS = {"ahead of": 1.0, "tied with": None, "behind": 0.0}
"""What a row's encoding is of a column's, and how good that is."""


@dataclass(frozen=True)
class Pairs:
    """All pairs in one measure.

    measure   what is compared, in words
    labels    of the rows and of the columns: the user's own encodings first
    rows      the row's encoding is ahead of the column's, behind it, or neither: difference and interval
    """

    measure: str
    labels: list[str]
    rows: list[list[Cell]]

    def standing(self, label: str) -> str:
        """Whom an encoding is ahead of, tied with and behind."""
        cells = self.rows[self.labels.index(label)]
        others = [
            (words, [x for x, cell in zip(self.labels, cells, strict=True) if cell.text == words]) for words in WORDS
        ]
        return ", ".join(f"{words} {listed([*map(name, labels)])}" for words, labels in others if labels)


def pairs(found: Sequence[Result]) -> list[Pairs]:
    """The pairs of one task in each measure in which any were compared."""
    # Compared in the order of the words, so that each comparison is made once; shown with the user's own first.
    learners = [result for result in found if result.learned]
    labels = [result.label for result in sorted(learners, key=lambda result: not is_own(result))]
    compared = [(measure, claims.compare(learners, measure)) for measure in measures_of(learners)]
    return [matrix(measure, comparison, labels) for measure, comparison in compared if comparison.differences]


def matrix(measure: Measure, comparison: Comparison, labels: list[str]) -> Pairs:
    differences = {(d.first, d.second): (d, d.mean) for d in comparison.differences}
    differences |= {(d.second, d.first): (d, -d.mean) for d in comparison.differences}
    # No share differs by more than all of it.
    most = 1.0 if measure.variance else math.inf

    def cell(row: str, column: str) -> Cell:
        if (row, column) not in differences:
            return Cell("" if row == column else NOTHING, missing=True)
        difference, mean = differences[row, column]
        ends = [max(-most, min(most, mean + side * difference.half_width)) for side in (-1, 1)]
        low, high = map(measure.signed, ends if measure.higher else reversed(ends))
        words = ("ahead of" if mean > 0 else "behind") if comparison.claimed(difference) else "tied with"
        return Cell(words, f"{measure.signed(mean)}{measure.unit}, {low} to {high}", WORDS[words])

    return Pairs(measure.words, labels, [[cell(row, column) for column in labels] for row in labels])
