"""The numbers behind the views, one file for each kind.

A section of an encoding is a function `of(encoding, shape)`, which gives what JSON can hold, or None where the encoding
has nothing of the kind, or nothing that is known before it is trained. A section of the page is a function of what the
page was asked for.
"""

from collections.abc import Callable
from typing import Any

from posenc.encoding.base import Encoding, Shape
from posenc.lab.views.sections import added, biases, moves, order, spectrum

OF_ENCODINGS: dict[str, Callable[[Encoding, Shape], Any]] = {
    "added": added.of,
    "biases": biases.of,
    "moves": moves.of,
    "order": order.of,
    "spectrum": spectrum.of,
}
"""Name in the page -> what makes it, for each encoding."""
