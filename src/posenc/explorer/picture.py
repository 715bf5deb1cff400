"""Encodings with two axes on a picture's patches: similarity or bias by the patches' offset."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from posenc import catalogue
from posenc.encoding.base import Encoding, Shape
from posenc.lab.description.pictures import logits_of_ones, merge_equal_heads, needs_fine_grid
from posenc.lab.runs.record import to_list
from posenc.model.seeding import local_seed
from posenc.tokens.positions import Positions

SIDES = (8, 12, 16)
"""The sizes of the pictures (patches on each side)."""

SPECS = (
    "axial_rotary", "mixed_rotary", "multimodal_rotary", "multimodal_rotary(order=interleaved)", "image_rotary",
    "sinusoidal(axes=2)", "learned_grid", "grid_bias",
)  # fmt: skip
"""The default encodings with several axes."""


@torch.no_grad()
def offset_maps(specs: Sequence[str], shape: Shape) -> dict[str, Any]:
    """Return a map by offset for each encoding with several axes, or for SPECS if there is none.

    >>> [map["name"] for map in offset_maps(["rotary", "axial_rotary"], Shape.of(64, 4, 128))["maps"]]
    ['axial_rotary']
    """
    maps = build_maps(specs, shape) or build_maps(SPECS, shape)
    return {"sides": list(SIDES), "head_dim": shape.head_dim, "maps": maps}


def build_maps(specs: Sequence[str], shape: Shape) -> list[dict[str, Any]]:
    with local_seed(0):
        encodings = {spec: catalogue.build(spec, shape) for spec in specs}
    return [{"name": spec, **offset_map(encoding, shape)} for spec, encoding in encodings.items() if encoding.axes != 1]


def offset_map(encoding: Encoding, shape: Shape) -> dict[str, Any]:
    """Return the compared quantity, and its numbers [H, rows, columns] by offset, -15..15 on both axes.

    The offset is other patch minus patch. If coordinates run from -1 to 1 for any picture size, each size has its own
    numbers. Without training there may be none; random initial directions are numbers, with `is_random` true.
    """
    random = any(True for _ in encoding.parameters())
    turns = "turn" in encoding.doors and encoding.turns != "queries"
    quantity = "logit" if turns else "cosine" if "embed" in encoding.doors else "bias"
    known_numbers = turns or (not random and not encoding.doors.isdisjoint({"embed", "by_distance"}))
    offsets = None
    if known_numbers:
        sides = SIDES if needs_fine_grid(encoding.wavelengths) else (0,)
        offsets = {str(side): to_list(values_by_offset(encoding, shape, quantity, side)) for side in sides}
    return {"quantity": quantity, "is_random": random, "offsets": offsets}


def values_by_offset(encoding: Encoding, shape: Shape, quantity: str, side: int) -> Tensor:
    """Return the numbers for a picture size; side 0 is any size, with coordinates that count patches."""
    reach = 2 * SIDES[-1] - 1
    # An encoding for any number of axes reads time, row and column; a picture has one time.
    at = Positions.grid(*(1,) * ((encoding.axes or 3) - 2), reach, reach)
    if side:
        # The middle of the picture is at 0, its edges at -1 and 1.
        at = at.with_facts(coords=(at.coords.double() - SIDES[-1] + 1) * 2 / side, extent=None)
    here = at.tokens // 2
    if quantity == "logit":
        heads = logits_of_ones(encoding, shape, at, here)
    elif quantity == "cosine":
        unit = normalize(encoding.embed(torch.zeros(1, at.tokens, shape.dim, dtype=torch.float64), at)[0], dim=-1)
        heads = (unit @ unit[here])[None]
    else:
        coords = at.coords[0].double()
        values = encoding.by_distance(coords[here] - coords)
        assert values is not None
        heads = merge_equal_heads(values)
    return heads.unflatten(-1, (reach, reach))
