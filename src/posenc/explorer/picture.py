"""Encodings of two axes on the patches of a picture: what two patches have in common, by the offset between them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from posenc import catalogue
from posenc.encoding.base import Encoding, Shape
from posenc.lab.description.pictures import fine, logits_of_ones, one_if_equal
from posenc.lab.runs.record import rounded
from posenc.model.seeding import seeded
from posenc.tokens.positions import Positions

SIDES = (8, 12, 16)
"""The pictures, in patches on each side."""

SPECS = (
    "axial_rotary", "mixed_rotary", "multimodal_rotary", "multimodal_rotary(order=interleaved)", "image_rotary",
    "sinusoidal(axes=2)", "learned_grid", "grid_bias",
)  # fmt: skip
"""What is shown where no encoding with several axes was asked for."""


@torch.no_grad()
def on_two_axes(chosen: Sequence[str], shape: Shape) -> dict[str, Any]:
    """Of each encoding with several axes a map by offset; of the best known ones where none of them was asked for.

    >>> [map["name"] for map in on_two_axes(["rotary", "axial_rotary"], Shape.of(64, 4, 128))["maps"]]
    ['axial_rotary']
    """
    maps = maps_of(chosen, shape) or maps_of(SPECS, shape)
    return {"sides": list(SIDES), "head_dim": shape.head_dim, "maps": maps}


def maps_of(specs: Sequence[str], shape: Shape) -> list[dict[str, Any]]:
    with seeded(0):
        built = {spec: catalogue.build(spec, shape) for spec in specs}
    return [{"name": spec, **map_of(encoding, shape)} for spec, encoding in built.items() if encoding.axes != 1]


def map_of(encoding: Encoding, shape: Shape) -> dict[str, Any]:
    """What is compared, and the numbers [H, rows, columns] by offset, other patch minus patch, -15..15 on both axes.

    Where coordinates run from -1 to 1 whatever the picture's size, every size has numbers of its own. There are none
    where training decides all of them; directions that are drawn at the start are numbers, and it is said.
    """
    drawn = any(True for _ in encoding.parameters())
    turns = "turn" in encoding.doors and encoding.turns != "queries"
    what = "logit" if turns else "cosine" if "embed" in encoding.doors else "bias"
    known = turns or (not drawn and not encoding.doors.isdisjoint({"embed", "by_distance"}))
    sides = SIDES if fine(encoding.wavelengths) else (0,)
    return {
        "what": what,
        "drawn": drawn,
        "offsets": {str(side): rounded(by_offset(encoding, shape, what, side)) for side in sides} if known else None,
    }


def by_offset(encoding: Encoding, shape: Shape, what: str, side: int) -> Tensor:
    """The numbers for pictures of a size; a side of 0 is every size, with coordinates that count patches."""
    reach = 2 * SIDES[-1] - 1
    # What reads any number of axes reads time, row and column; a picture has one time.
    at = Positions.grid(*(1,) * ((encoding.axes or 3) - 2), reach, reach)
    if side:
        # The middle of the picture is at 0, and its sides are at -1 and 1.
        at = at.changed(coords=(at.coords.double() - SIDES[-1] + 1) * 2 / side, extent=None)
    here = at.tokens // 2
    if what == "logit":
        heads = logits_of_ones(encoding, shape, at, here)
    elif what == "cosine":
        unit = normalize(encoding.embed(torch.zeros(1, at.tokens, shape.dim, dtype=torch.float64), at)[0], dim=-1)
        heads = (unit @ unit[here])[None]
    else:
        coords = at.coords[0].double()
        values = encoding.by_distance(coords[here] - coords)
        assert values is not None
        heads = one_if_equal(values)
    return heads.unflatten(-1, (reach, reach))
