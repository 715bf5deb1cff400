"""The parts of a page: a template, the views' script, and data as JSON, never parsed as HTML."""

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
"""The version of the data in a page; web/src/data.ts has its types."""

DIGITS = 7
"""The digits of each number in a page."""


def template(path: Path) -> jinja2.Template:
    """Return the template of a page, with all text escaped and control characters visible."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader((path.parent, Path(__file__).parent)),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # Markup is a subclass of str, and is not escaped.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(sentence=sentence, short=short)
    colours: dict[str, Any] = {"colours": len(LIGHT), "light": [*LIGHT, *RAMP], "dark": [*DARK, *RAMP_DARK]}
    environment.globals.update(colours)
    return environment.get_template(path.name)


def sentence(text: str) -> Markup:
    """Convert a sentence to HTML: escaped, with names between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(visible(text))))


def script() -> Markup:
    """Return the built script, for use within <script>."""
    return Markup(SCRIPT.read_text(encoding="utf-8").replace("</", "<\\/"))


def data_element(data: Mapping[str, Any]) -> Markup:
    """Return data as the JSON element that the script reads; its text cannot end the element.

    >>> "<b>" in data_element({"name": "</script><b>"})
    False
    """
    text = json.dumps(jsonable(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" id="posenc-data">{text}</script>')


def jsonable(value: Any, digits: int = DIGITS) -> Any:
    """Round all numbers to so many digits, and replace those that are not finite by None, for JSON."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): jsonable(part, digits) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(part, digits) for part in value]
    return value


def json_value(value: Any) -> Any:
    """Return the value as JSON has it: null for numbers that are not finite, text for unknown types."""
    return json.loads(json.dumps(jsonable(value, digits=17), default=str))
