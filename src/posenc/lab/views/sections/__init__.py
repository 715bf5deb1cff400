"""The data of the views, one file for each kind.

A section of an encoding is a function of (encoding, shape). It returns data for JSON, or None if the encoding has
nothing of the kind, or nothing that is fixed before training.
"""

from collections.abc import Callable
from typing import Any

from posenc.encoding.base import Encoding, Shape
from posenc.lab.views.sections import added, biases, moves, order, spectrum

ENCODING_SECTIONS: dict[str, Callable[[Encoding, Shape], Any]] = {
    "added": added.added_table,
    "biases": biases.bias_by_distance,
    "moves": moves.key_moves,
    "order": order.order_changes,
    "spectrum": spectrum.rotary_spectra,
}
"""Name in the page -> the function of its section."""
