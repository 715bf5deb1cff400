"""Format numbers and names, with digits that a reader can use and no miss rounded to a hit.

Sentences have the names of encodings between backticks, because `none` is one of them.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from posenc.foreign import visible
from posenc.lab.results.summary.runs import IndexedRecords, Record, Result, trained_lengths

DASH = "\N{EN DASH}"
# The most names in one list; the tables have all.
MAX_NAMES = 10
# Measure -> the labels of its axes: score and length.
SCORE_AXES = {
    "exact_match": ("exact match, %", "length, symbols"),
    "perplexity_ratio": ("R: perplexity relative to trained length", "window length, bytes"),
    "sliding_bits_per_byte": ("bits per byte, sliding windows", "window length, bytes"),
}
# The most letters on a page: of a name or another text of a record, and of a sentence.
MAX_LETTERS = 200
MAX_SENTENCE_LETTERS = 1_000


def for_display(value: Any, max_letters: int = MAX_LETTERS) -> Any:
    """Return a record, or a value in it, for display: long texts cut, control characters visible.

    A cut text ends with its digest, so different texts stay different. Files for programs keep the whole text.

    >>> for_display({"spec": "a" * 300})["spec"][195:]
    'aaaaa... (300 letters, SHA-256 9835fa6b)'
    """
    if isinstance(value, dict):
        # Most values are numbers.
        return {
            for_display(key, max_letters): inner if type(inner) in (float, int) else for_display(inner, max_letters)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [for_display(inner, max_letters) for inner in value]
    if not isinstance(value, str):
        return value
    if len(value) <= max_letters:
        return visible(value)
    digest = hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{visible(value[:max_letters])}... ({len(value)} letters, SHA-256 {digest})"


def records_for_display(records: Sequence[Record]) -> IndexedRecords:
    """Return the records for display, grouped once."""
    return IndexedRecords(for_display(records))


def duration(seconds: float) -> str:
    """Format seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def decimal(value: float, digits: int) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.{digits}f}"


def percent(value: float) -> str:
    """Format a share in percent, without the sign; 100 and 0 only if the share is exactly that.

    >>> [percent(x) for x in (1.0, 0.996, 0.83, 0.004, 0.0)]
    ['100', '99.6', '83', '0.4', '0']
    """
    percentage = value * 100
    if math.isinf(value):
        return decimal(value, 0)
    whole = f"{percentage:.0f}"
    if (whole == "100" and percentage != 100) or (whole == "0" and percentage != 0):
        precise = f"{percentage:.1f}"
        return {"100.0": "99.9", "0.0": "0.1"}.get(precise, precise)
    return whole


def bits(value: float) -> str:
    return decimal(value, 2)


def ratio(value: float) -> str:
    return decimal(value, 2 if abs(value) < 10 else 0)


def seconds(value: float) -> str:
    return decimal(value, 1 if abs(value) < 100 else 0)


def count(value: float) -> str:
    return decimal(value, 0 if float(value).is_integer() or math.isinf(value) else 1)


def times(factor: float) -> str:
    return f"{factor:.2f}".rstrip("0").rstrip(".") + "x"


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return 'a, b and c'; of a long list the beginning and the number of others."""
    if len(words) > MAX_NAMES:
        words = [*words[: MAX_NAMES - 1], f"{len(words) - MAX_NAMES + 1} others"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def label_list(labels: Iterable[str]) -> str:
    return join_words([f"`{label}`" for label in labels])


def trained_text(results: Sequence[Result]) -> str:
    return join_words([count(x) for x in trained_lengths(results)] or ["the trained length"], "or")


def trained_score_text(result: Result) -> str:
    if (estimate := result.in_range()) is not None:
        return f"{percent(estimate.median)} % exact match"
    if (estimate := result.estimate_of_all("in_distribution", "bits_per_byte")) is not None:
        return f"{bits(estimate.median)} bits per byte"
    return ""
