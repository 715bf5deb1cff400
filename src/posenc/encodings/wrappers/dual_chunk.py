"""Dual chunk attention."""

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encodings.wrappers import BranchCoords, DistanceMap


class DualChunk(DistanceMap):
    """Cut the sequence into chunks: distances inside one, and shortly before it, are exact.

    distance(i, j) = i - j                                    in the same chunk
                     min(i mod chunk + chunk, longest - 1) - j mod chunk    when the key is in the chunk before
                     longest - 1 - j mod chunk                when the key is in an earlier chunk

    and the mirror image for keys ahead. No distance reaches `longest`, the trained length; the `longest - chunk` tokens
    just before a query keep their true distance across the border of chunks.

    encoding  the encoding that reads these distances: rotary-like, or a bias by distance
    chunk     length of a chunk (positions); three quarters of `longest` is usual
    longest   the length that distances stay below (positions); default: 4/3 of the chunk

    Keys are cached unturned, each call turns them once for each of the three kinds of pairs (five with the future), and
    the logits are in memory; the published form runs in a fused kernel.

    Where it goes wrong: keys of all earlier chunks look equally far, up to their place in the chunk.

    Raises ValueError for a chunk below 1 or a `longest` that is not above it, and for an encoding that reads more than
    a distance.
    Source: An et al. 2024, arXiv:2402.17463, section 3.

    >>> from posenc import Rotary
    >>> m, n = DualChunk(Rotary(8), chunk=6, longest=10).formula_positions(13, 1)
    >>> m - n
    8
    """

    equation = r"""
    \text{distance}(i, j) = \begin{cases} i - j & \text{same chunk} \\ \min(i \bmod \text{chunk} +
    \text{chunk}, \text{longest} - 1) - j \bmod \text{chunk} & \text{the one before} \\ \text{longest} - 1 - j
    \bmod \text{chunk} & \text{an earlier one} \end{cases}
    """
    source = "An et al. 2024, arXiv:2402.17463, section 3"
    also_called = ("dual_chunk_attention", "dca")
    extrapolates = "claimed to more than 8 times the trained length untuned"
    used_by = "Qwen2.5-1M"

    def __init__(self, encoding: Encoding, *, chunk: int = 384, longest: int | None = None) -> None:
        checks.sizes(chunk=chunk)
        if longest is not None and not longest > chunk:
            raise ValueError(f"longest must be above chunk={chunk} positions, got {longest}")
        super().__init__(encoding)
        self.chunk, self.longest = chunk, longest

    @property
    def reach(self) -> int:
        """The length that distances stay below (positions)."""
        return self.chunk + max(1, self.chunk // 3) if self.longest is None else self.longest

    def branches(self) -> list[BranchCoords]:
        last = self.reach - 1

        def place_in_chunk(coords: Tensor) -> Tensor:
            return coords.remainder(self.chunk)

        def just_after(coords: Tensor) -> Tensor:
            return (place_in_chunk(coords) + self.chunk).clamp(max=last)

        def far_after(coords: Tensor) -> Tensor:
            return torch.full_like(coords, last)

        def chunks_between(m: Tensor, n: Tensor) -> Tensor:
            return m.div(self.chunk, rounding_mode="floor") - n.div(self.chunk, rounding_mode="floor")

        return [
            BranchCoords(just_after, place_in_chunk, lambda m, n: chunks_between(m, n) == 1),
            BranchCoords(far_after, place_in_chunk, lambda m, n: chunks_between(m, n) > 1),
            BranchCoords(place_in_chunk, just_after, lambda m, n: chunks_between(m, n) == -1),
            BranchCoords(place_in_chunk, far_after, lambda m, n: chunks_between(m, n) < -1),
        ]

    def formula_positions(self, m: float, n: float) -> tuple[float, float]:
        if m < n:
            later, earlier = self.formula_positions(n, m)
            return earlier, later
        apart = m // self.chunk - n // self.chunk
        if apart == 0:
            return m, n
        later = min(m % self.chunk + self.chunk, self.reach - 1) if apart == 1 else self.reach - 1
        return later, n % self.chunk
