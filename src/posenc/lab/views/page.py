"""What makes a page of views: the script, and the numbers as text that no page can mistake for more than numbers."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

SCRIPT = Path(__file__).with_name("views.js")
SCHEMA = 1
"""Of the numbers in a page; web/src/data.ts says their forms."""

DIGITS = 7
"""Of each number in a page."""


def script() -> Markup:
    """The built script, to stand within <script>."""
    return Markup(SCRIPT.read_text(encoding="utf-8").replace("</", "<\\/"))


def numbers(data: Mapping[str, Any]) -> Markup:
    """Data as the element that the script reads: whatever text it holds stays text.

    >>> "<b>" in numbers({"name": "</script><b>"})
    False
    """
    text = json.dumps(shortened(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" id="posenc-data">{text}</script>')


def shortened(value: Any, digits: int = DIGITS) -> Any:
    """Numbers to so many digits, by default those that a picture can show; what is not finite is None, as JSON has no
    word for it.
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): shortened(part, digits) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(part, digits) for part in value]
    return value
