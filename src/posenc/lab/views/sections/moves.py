"""What becomes of a cached key whose token moves."""

from typing import Any

import torch

from posenc.cache import GrowingCache
from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.encoding.keys import Keys
from posenc.encodings.rotations import ScheduledSpectrum
from posenc.lab.runs.settings import reads
from posenc.tokens.positions import Positions


@torch.no_grad()
def of(encoding: Encoding, shape: Shape) -> dict[str, Any]:
    """What the encoding says of it, and what a cache does with a token that moves by one place.

    way      `Encoding.moves`
    in_rows  whether it reads places along one axis; where it does not, the rest is empty
    refusal  what the cache says where it does not let the token move
    turned   whether the key is turned again
    angles   by how much for each place, pair by pair (radians); None where that is not known without training, or no
             table says it

    >>> from posenc import Rotary
    >>> of(Rotary(4), Shape.of(dim=4, heads=1, max_len=2))["angles"]
    [1.0, 0.01]
    """
    way, in_rows = encoding.moves, reads(encoding, 1)
    refusal, turned = after_a_move(encoding, shape) if in_rows else ("", False)
    angles = angles_of(encoding) if turned else None
    return {"way": way, "in_rows": in_rows, "refusal": refusal, "turned": turned, "angles": angles}


def after_a_move(encoding: Encoding, shape: Shape) -> tuple[str, bool]:
    """What a cache says that is asked to move a token by one place, and whether its key has changed then."""
    cache, at = GrowingCache(), Positions.count(1)
    value = torch.ones(1, shape.heads, 1, shape.head_dim, dtype=torch.float64)
    key = encoding.turn(value, at, "key")
    cache.store(Keys(key, value, at, moves=encoding.moves))
    try:
        cache.move(by=1)
    except ValueError as error:
        return str(error), False
    assert cache.keys is not None
    return "", not torch.equal(cache.placed(cache.keys, encoding).k, key)


def angles_of(encoding: Encoding) -> list[float] | None:
    """The angle of each pair for one place (radians), where one part alone turns and nothing of it is trained."""
    turning = [part for part in parts_of(encoding) if "turn" in part.doors]
    if len(turning) != 1 or not isinstance(turning[0], ScheduledSpectrum):
        return None
    return turning[0].spectrum()[0].tolist()
