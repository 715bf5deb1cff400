"""The look of encodings in figures and pages: colours, markers, and shortened labels."""

import itertools
import re
import zlib
from collections.abc import Iterable

from posenc.foreign import visible

# On white each has a contrast of 3 or more, and colour-blind readers can tell them apart; DARK is for a dark page.
LIGHT = ("#005eb0", "#d45902", "#04905c", "#c563ad", "#8a4b00", "#0091eb", "#3c2b90", "#6a6376")
DARK = ("#3291c0", "#ff893f", "#19bd8d", "#f29ace", "#f9d14d", "#b6e0ff", "#9e82ff", "#937f7a")
# For ordered things such as heads, from the first to the last.
RAMP = ("#300148", "#2b176f", "#02377f", "#055271", "#006872", "#047d6f", "#0e9457", "#719e39")
RAMP_DARK = ("#884baf", "#706ed6", "#4292e8", "#16b2de", "#09cdcf", "#59e4b5", "#adf099", "#f4f68c")
# The best known encodings: the first eight have the eight colours, the others repeat them.
COMMON = ("rotary", "learned", "alibi", "t5_bias", "shaw", "sinusoidal", "kerple", "none", "fire", "sandwich")


def places(specs: Iterable[str]) -> dict[str, int]:
    """Return the index of each encoding's look. Its name decides the colour, and a sum has that of its first part."""
    place_of: dict[str, int] = {}
    for spec in dict.fromkeys(specs):
        first, *other_parts = spec.split(" + ")
        place = COMMON.index(first) if first in COMMON else len(LIGHT) + zlib.crc32(ascii(first).encode()) % len(LIGHT)
        # Encodings of one colour have different markers and dashes.
        free = itertools.count(place + len(LIGHT) * bool(other_parts), len(LIGHT))
        place_of[spec] = next(place for place in free if place not in place_of.values())
    return place_of


def short(label: str, width: int = 30) -> str:
    """Shorten a label: drop the folders of a path, then the middle if it is still too long."""
    label = re.sub(r"[^\s+(),=]*/", "…/", visible(label))
    if len(label) > width:
        label = f"{label[: width // 2 - 1]}…{label[len(label) - (width - width // 2) :]}"
    # matplotlib leaves labels that begin with an underscore out of legends.
    return f" {label}" if label.startswith("_") else label
