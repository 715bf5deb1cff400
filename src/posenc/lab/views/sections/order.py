"""The order test of an encoding: what each of four tokens notices, in each of their 24 orders."""

from typing import Any

from posenc import catalogue
from posenc.encoding.base import Encoding, Shape
from posenc.lab.evaluation.order import changes
from posenc.lab.experiments.recipes import on_axes
from posenc.lab.runs.settings import reads

TOKENS = 4


def of(encoding: Encoding, shape: Shape) -> dict[str, Any] | None:
    """By the direction of attention, for one layer and for two: [orders][tokens], as `changes` gives them."""
    spec = str(encoding)
    if not reads(catalogue.build(spec, shape, hints=on_axes()), 1):
        return None
    return {
        name: [changes(spec, tokens=TOKENS, layers=layers, is_causal=is_causal) for layers in (1, 2)]
        for name, is_causal in (("bidirectional", False), ("causal", True))
    }


def without_position(shape: Shape) -> dict[str, Any] | None:
    """The same of a model without position, for the page: what all others are held against."""
    return of(catalogue.build("none", shape), shape)
