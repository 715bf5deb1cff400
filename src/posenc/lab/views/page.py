"""What makes a page: its template, the script of its views, and numbers as text that no page can mistake for more."""

import html
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from posenc.foreign import visible
from posenc.lab.appearance import DARK, LIGHT, RAMP, RAMP_DARK, short

SCRIPT = Path(__file__).with_name("views.js")
SCHEMA = 1
"""Of the numbers in a page; web/src/data.ts says their forms."""

DIGITS = 7
"""Of each number in a page."""


def template(path: Path) -> jinja2.Template:
    """The template of a page that shows whatever text it is given letter by letter."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader((path.parent, Path(__file__).parent)),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Markup is a string too, and is no text.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(sentence=sentence, short=short)
    colours: dict[str, Any] = {"colours": len(LIGHT), "light": [*LIGHT, *RAMP], "dark": [*DARK, *RAMP_DARK]}
    environment.globals.update(colours)
    return environment.get_template(path.name)


def sentence(text: str) -> Markup:
    """Plain words to HTML: escaped, with names between backticks set as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(visible(text))))


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


def finite(value: Any) -> Any:
    """The value as JSON holds it: null for numbers that JSON does not have, words for what it does not know."""
    return json.loads(json.dumps(shortened(value, digits=17), default=str))
