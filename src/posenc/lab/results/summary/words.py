"""How numbers and names are said: each number with the digits that a reader can use, never a miss rounded to a hit.

Names of encodings stand between backticks in sentences (`none` is one of them).
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from posenc.foreign import visible
from posenc.lab.results.summary.runs import Record, Result, Settled, trained_lengths

NOTHING = "\N{EN DASH}"
# Names in one list; the table has them all.
MOST_NAMES = 10
# The axes of scores by length: what is measured, and what lengths count.
REACHES = {
    "exact_match": ("exact match, %", "length, symbols"),
    "perplexity_ratio": ("R: perplexity relative to trained length", "window length, bytes"),
    "sliding_bits_per_byte": ("bits per byte, sliding windows", "window length, bytes"),
}
# Letters that are shown: of a name or any other text of a record, and of a sentence.
MOST_LETTERS = 200
MOST_OF_A_SENTENCE = 1_000


def legible(value: Any, most: int = MOST_LETTERS) -> Any:
    """A record, or anything in it, as people are shown it: of a long text the beginning, and no control characters.

    Two texts stay two. What is written down for programs is never this.

    >>> legible({"spec": "a" * 300})["spec"][195:]
    'aaaaa... (300 letters, SHA-256 9835fa6b)'
    """
    if isinstance(value, dict):
        # Nearly all that records hold is numbers under names.
        return {
            legible(key, most): inner if type(inner) in (float, int) else legible(inner, most)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [legible(inner, most) for inner in value]
    if not isinstance(value, str):
        return value
    if len(value) <= most:
        return visible(value)
    digest = hashlib.sha256(value.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{visible(value[:most])}... ({len(value)} letters, SHA-256 {digest})"


def shown(records: Sequence[Record]) -> Settled:
    """Records as people are shown them."""
    return Settled(legible(records))


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def plain(value: float, digits: int) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.{digits}f}"


def percent(value: float) -> str:
    """In percent, without the sign; 100 and 0 only where it is really so.

    >>> [percent(x) for x in (1.0, 0.996, 0.83, 0.004, 0.0)]
    ['100', '99.6', '83', '0.4', '0']
    """
    exact = value * 100
    if math.isinf(value):
        return plain(value, 0)
    rounded = f"{exact:.0f}"
    if (rounded == "100" and exact != 100) or (rounded == "0" and exact != 0):
        near = f"{exact:.1f}"
        return {"100.0": "99.9", "0.0": "0.1"}.get(near, near)
    return rounded


def bits(value: float) -> str:
    return plain(value, 2)


def ratio(value: float) -> str:
    return plain(value, 2 if abs(value) < 10 else 0)


def seconds(value: float) -> str:
    return plain(value, 1 if abs(value) < 100 else 0)


def count(value: float) -> str:
    return plain(value, 0 if float(value).is_integer() or math.isinf(value) else 1)


def times(factor: float) -> str:
    return f"{factor:.2f}".rstrip("0").rstrip(".") + "x"


def name(label: str) -> str:
    return f"`{label}`"


def listed(words: Sequence[str], last: str = "and") -> str:
    """'a, b and c'; of a long list the beginning, and how many more there are."""
    if len(words) > MOST_NAMES:
        words = [*words[: MOST_NAMES - 1], f"{len(words) - MOST_NAMES + 1} others"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def names_of(found: Sequence[Result]) -> str:
    return listed([name(result.label) for result in found])


def trained_words(found: Sequence[Result]) -> str:
    return listed([count(x) for x in trained_lengths(found)] or ["the trained length"], "or")


def in_range_of_all(result: Result) -> str:
    if (spread := result.in_range()) is not None:
        return f"{percent(spread.median)} % exact match"
    if (spread := result.spread_of_all("in_distribution", "bits_per_byte")) is not None:
        return f"{bits(spread.median)} bits per byte"
    return ""
