"""The order test of an encoding: the change of four tokens in each of their 24 orders."""

from typing import Any

from posenc import catalogue
from posenc.encoding.base import Encoding, Shape
from posenc.lab.evaluation.order import output_changes
from posenc.lab.experiments.recipes import axes_hints
from posenc.lab.runs.settings import reads_axes

TOKENS = 4


def order_changes(encoding: Encoding, shape: Shape) -> dict[str, Any] | None:
    """Return the changes [orders][tokens] by direction of attention, for one layer and for two."""
    spec = str(encoding)
    if not reads_axes(catalogue.build(spec, shape, hints=axes_hints()), 1):
        return None
    return {
        name: [output_changes(spec, tokens=TOKENS, layers=layers, is_causal=is_causal) for layers in (1, 2)]
        for name, is_causal in (("bidirectional", False), ("causal", True))
    }


def without_position(shape: Shape) -> dict[str, Any] | None:
    """Return the same for a model without position, to compare with."""
    return order_changes(catalogue.build("none", shape), shape)
