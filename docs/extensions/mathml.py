"""Formulas as MathML, which browsers render without a script or a network."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(to_mathml(node, "inline"))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{to_mathml(node, "block")}</div>')
    raise nodes.SkipNode


def to_mathml(node: nodes.Element, display: str) -> str:
    """Return a formula as MathML; warn of an unknown command, which the converter would print as text."""
    markup = convert(node.astext(), display=display)
    if "\\" in markup:
        logger.warning("a command of this formula is not known as MathML: %s", node.astext(), location=node)
    return markup


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
