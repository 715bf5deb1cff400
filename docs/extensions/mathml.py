"""Formulas as MathML, which browsers set by themselves: the site needs no script and no network for them."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(converted(node, "inline"))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{converted(node, "block")}</div>')
    raise nodes.SkipNode


def converted(node: nodes.Element, display: str) -> str:
    """A formula as MathML; a warning where a command is not known, which the converter would print as it is written."""
    made = convert(node.astext(), display=display)
    if "\\" in made:
        logger.warning("a command of this formula is not known as MathML: %s", node.astext(), location=node)
    return made


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
