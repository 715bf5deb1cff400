"""Which two channels of a head form a pair, and what the papers say of encodings that turn pairs, in scalars."""

import cmath
import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import mul
from typing import Any

from posenc.encoding.formulas import Published, Token, logit_of_a_pair

LAYOUTS = ("half", "interleaved")


def channels_of_pairs(pairs: int, layout: str) -> list[tuple[int, int]]:
    """The two channels of each of so many pairs; "swapped" is "half" with the second of a pair first."""
    if layout == "swapped":
        return [(pair + pairs, pair) for pair in range(pairs)]
    return [(pair, pair + pairs) if layout == "half" else (2 * pair, 2 * pair + 1) for pair in range(pairs)]


def multiplied(x: Sequence[float], factors: Iterable[complex], pairs: Sequence[tuple[int, int]]) -> list[float]:
    """A vector with each pair of channels, as a complex number, multiplied by a factor; the other channels pass."""
    out = list(x)
    for (first, second), factor in zip(pairs, factors, strict=True):
        pair = complex(x[first], x[second]) * factor
        out[first], out[second] = pair.real, pair.imag
    return out


class PairsTurned(Published):
    """The formulas of an encoding that turns pairs of channels, each by an angle that is linear in the position.

    A subclass says its angles, and its sizes where a pair is also stretched. What becomes of a query or key follows
    from its own angles; a logit is said apart from that, by the angles of the difference of positions alone.
    """

    layout: str

    def formula_angles(self, position: Any, head: int = 0, horizon: float | None = None) -> list[float]:
        """As published, in scalars: the angle by which each pair of a token at `position` turns (radians)."""
        raise NotImplementedError

    def formula_sizes(self, position: Any, side: str, horizon: float | None = None) -> Iterable[float]:
        """As published, in scalars: what each pair of a query or key at `position` is stretched by; 1."""
        return repeat(1.0)

    def formula_sizes_between(self, m: Any, n: Any, horizon: float | None = None) -> Iterable[float]:
        """As published, in scalars: what each pair's part of a logit is stretched by, query at m and key at n."""
        return map(mul, self.formula_sizes(m, "query", horizon), self.formula_sizes(n, "key", horizon))

    def formula_pairs(self, pairs: int) -> list[tuple[int, int]]:
        """The two channels of each pair, in the order of the angles."""
        return channels_of_pairs(pairs, self.layout)

    def formula_turned(self, x: Sequence[float], position: Any, head: int, side: str) -> list[float]:
        """As published, in scalars: a head's query or key, turned."""
        angles = self.formula_angles(position, head)
        factors = map(cmath.rect, self.formula_sizes(position, side), angles)
        return multiplied(x, factors, self.formula_pairs(len(angles)))

    def formula_query(self, q: Sequence[float], position: Any, head: int = 0) -> list[float]:
        return self.formula_turned(q, position, head, "query")

    def formula_key(self, k: Sequence[float], position: Any, head: int = 0) -> list[float]:
        return self.formula_turned(k, position, head, "key")

    formula_logit = logit_of_a_pair

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
        """The product of a query and a key that is turned against it by some angles; other channels as they are."""
        pairs = self.formula_pairs(len(angles))
        passed = set(range(len(q))) - {channel for pair in pairs for channel in pair}
        total = [q[channel] * k[channel] for channel in passed]
        for (first, second), angle, size in zip(pairs, angles, sizes, strict=False):
            # The real part of (q_a + i q_b) conj(k_a + i k_b) e^{i angle}.
            turned = complex(q[first], q[second]) * complex(k[first], -k[second])
            total.append(size * (turned.real * math.cos(angle) - turned.imag * math.sin(angle)))
        return math.fsum(total)


def difference(m: Any, n: Any) -> Any:
    """How far a query at m is from a key at n, on each axis where there are several."""
    return tuple(a - b for a, b in zip(m, n, strict=True)) if isinstance(m, tuple) else m - n
