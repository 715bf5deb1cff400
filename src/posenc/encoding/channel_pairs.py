"""Channel pairs of a head, and the published formulas of encodings that rotate them, in scalars."""

import cmath
import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import mul
from typing import Any

from posenc.encoding.formulas import Formulas, Token, logit_of_pair

LAYOUTS = ("half", "interleaved")


def channels_of_pairs(pairs: int, layout: str) -> list[tuple[int, int]]:
    """Return the two channels of each pair; "swapped" is "half" with the second of a pair first."""
    if layout == "swapped":
        return [(pair + pairs, pair) for pair in range(pairs)]
    return [(pair, pair + pairs) if layout == "half" else (2 * pair, 2 * pair + 1) for pair in range(pairs)]


def multiply_pairs(x: Sequence[float], factors: Iterable[complex], pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Return a vector with each channel pair, as a complex number, times a factor; other channels pass."""
    output = list(x)
    for (first, second), factor in zip(pairs, factors, strict=True):
        pair = complex(x[first], x[second]) * factor
        output[first], output[second] = pair.real, pair.imag
    return output


class PairsTurned(Formulas):
    """The formulas of an encoding that rotates channel pairs by angles linear in the position.

    A subclass defines the angles, and the sizes if pairs are also scaled. A query or key follows from its own angles;
    a logit is computed independently, from the angles of the difference of positions.
    """

    layout: str

    def formula_angles(self, position: Any, head: int = 0, horizon: float | None = None) -> list[float]:
        """As published, in scalars: the angle of each pair of a token at `position` (radians)."""
        raise NotImplementedError

    def formula_sizes(self, position: Any, side: str, horizon: float | None = None) -> Iterable[float]:
        """As published, in scalars: the factor of each pair of a query or key at `position`; 1."""
        return repeat(1.0)

    def formula_sizes_between(self, m: Any, n: Any, horizon: float | None = None) -> Iterable[float]:
        """As published, in scalars: the factor of each pair's logit, query at m, key at n."""
        return map(mul, self.formula_sizes(m, "query", horizon), self.formula_sizes(n, "key", horizon))

    def formula_pairs(self, pairs: int) -> list[tuple[int, int]]:
        """Return the two channels of each pair, in the order of the angles."""
        return channels_of_pairs(pairs, self.layout)

    def formula_turned(self, x: Sequence[float], position: Any, head: int, side: str) -> list[float]:
        """As published, in scalars: a head's query or key, rotated."""
        angles = self.formula_angles(position, head)
        factors = map(cmath.rect, self.formula_sizes(position, side), angles)
        return multiply_pairs(x, factors, self.formula_pairs(len(angles)))

    def formula_query(self, q: Sequence[float], position: Any, head: int = 0) -> list[float]:
        return self.formula_turned(q, position, head, "query")

    def formula_key(self, k: Sequence[float], position: Any, head: int = 0) -> list[float]:
        return self.formula_turned(k, position, head, "key")

    formula_logit = logit_of_pair

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        logits = []
        for key in keys:
            angles = self.formula_angles(difference(query.at, key.at), head, query.horizon)
            sizes = self.formula_sizes_between(query.at, key.at, query.horizon)
            logits.append(scale * self.formula_product(query.vector, key.vector, angles, sizes))
        return logits

    def formula_product(
        self, q: Sequence[float], k: Sequence[float], angles: Sequence[float], sizes: Iterable[float] = repeat(1.0)
    ) -> float:
        """Return the product of a query and a key rotated by some angles; other channels are multiplied plainly."""
        pairs = self.formula_pairs(len(angles))
        plain_channels = set(range(len(q))) - {channel for pair in pairs for channel in pair}
        total = [q[channel] * k[channel] for channel in plain_channels]
        for (first, second), angle, size in zip(pairs, angles, sizes, strict=False):
            # The real part of (q_a + i q_b) conj(k_a + i k_b) e^{i angle}.
            product = complex(q[first], q[second]) * complex(k[first], -k[second])
            total.append(size * (product.real * math.cos(angle) - product.imag * math.sin(angle)))
        return math.fsum(total)


def difference(m: Any, n: Any) -> Any:
    """Return the distance m - n of a query to a key; a tuple for several axes."""
    return tuple(a - b for a, b in zip(m, n, strict=True)) if isinstance(m, tuple) else m - n
