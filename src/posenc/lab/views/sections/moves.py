"""What happens to a cached key whose token moves."""

from typing import Any

import torch

from posenc.cache import GrowingCache
from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.encoding.keys import Keys
from posenc.encodings.rotations import ScheduledSpectrum
from posenc.lab.runs.settings import reads_axes
from posenc.tokens.positions import Positions


@torch.no_grad()
def key_moves(encoding: Encoding, shape: Shape) -> dict[str, Any]:
    """Return what a cache does with the key of a token that moves by one position.

    way         `Encoding.moves`
    in_rows     whether the encoding reads positions on one axis; if not, the rest is empty
    refusal     the error of the cache, if it does not let the token move
    is_rotated  whether the key is rotated
    angles      of each pair for one position (radians); None if they are trained, or not from one spectrum

    >>> from posenc import Rotary
    >>> key_moves(Rotary(4), Shape.of(dim=4, heads=1, max_len=2))["angles"]
    [1.0, 0.01]
    """
    way, in_rows = encoding.moves, reads_axes(encoding, 1)
    refusal, is_rotated = move_outcome(encoding, shape) if in_rows else ("", False)
    angles = angles_per_place(encoding) if is_rotated else None
    return {"way": way, "in_rows": in_rows, "refusal": refusal, "is_rotated": is_rotated, "angles": angles}


def move_outcome(encoding: Encoding, shape: Shape) -> tuple[str, bool]:
    """Move a cached token by one position; return the cache's error, and whether the key has changed."""
    cache, position = GrowingCache(), Positions.count(1)
    value = torch.ones(1, shape.heads, 1, shape.head_dim, dtype=torch.float64)
    key = encoding.turn(value, position, "key")
    cache.store(Keys(key, value, position, moves=encoding.moves))
    try:
        cache.move(by=1)
    except ValueError as error:
        return str(error), False
    assert cache.keys is not None
    return "", not torch.equal(cache.rotated_keys(cache.keys, encoding).k, key)


def angles_per_place(encoding: Encoding) -> list[float] | None:
    """Return each pair's angle for one position (radians), if just one part rotates, by a fixed spectrum."""
    turning = [part for part in parts_of(encoding) if "turn" in part.doors]
    if len(turning) != 1 or not isinstance(turning[0], ScheduledSpectrum):
        return None
    return turning[0].spectrum()[0].tolist()
