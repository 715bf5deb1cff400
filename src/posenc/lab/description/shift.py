"""A shift of position as a linear map of sinusoidal encodings."""

import torch
from torch import Tensor

from posenc.encodings.added.sinusoidal import Sinusoidal


def shift_matrix(encoding: Sinusoidal, k: float) -> Tensor:
    """The matrix M_k [dim, dim], float64, with PE(p + k) = M_k PE(p) for every position p.

    Each pair (sin, cos) turns by k times its frequency, so M_k is a block rotation that does not depend on p.
    Raises ValueError for several axes, and for an odd interleaved width, whose last sine has no cosine to turn with.
    """
    dim, pairs = encoding.dim, encoding.pairs
    if encoding.axes != 1:
        raise ValueError(f"a shift by k moves along one axis, and {encoding} has {encoding.axes}; build it with axes=1")
    if 2 * pairs > dim:
        raise ValueError(f"a shift needs whole pairs, and dim={dim} leaves a sine without its cosine; use an even dim")
    angle, k_of = encoding.frequencies * k, torch.arange(pairs)
    sines, cosines = (2 * k_of, 2 * k_of + 1) if encoding.layout == "interleaved" else (k_of, k_of + pairs)
    if encoding.layout == "cosines_first":
        sines, cosines = cosines, sines
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    matrix[sines, sines], matrix[sines, cosines] = angle.cos(), angle.sin()
    matrix[cosines, sines], matrix[cosines, cosines] = -angle.sin(), angle.cos()
    return matrix
