"""The published facts of an encoding: its formulas in scalars, its source, its claims and its users.

A formula defines one logit or pair, and tests compare the fast code with it. It may read an encoding's options and
parameters, never a table that is computed from them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple


class Token(NamedTuple):
    """One query or key of one head, in scalars, as the published formulas read it.

    vector   its query or key (channels)
    at       its coordinate, or one for each axis if there are several
    order    its place in the sequence
    memo     facts that the encoding remembers of it: name -> a number, or a list of them
    horizon  the declared length of its sequence, if any
    """

    vector: Sequence[float]
    at: Any
    order: int
    memo: Mapping[str, Any] = {}
    horizon: float | None = None


class Formulas:
    """The published facts of an encoding: formulas that it overrides, and texts about it."""

    equation: ClassVar[str] = ""
    r"""The docstring's equation, typeset: formulas in LaTeX, an empty line between two, `\text` for words."""

    source: ClassVar[str] = ""
    """The publication: authors, year, arXiv id and section."""

    also_called: ClassVar[tuple[str, ...]] = ()
    """Other names of the encoding, for search and for the suggestion after a wrong name in a spec."""

    extrapolates: ClassVar[str] = ""
    """Beyond the trained length: the claims, and the results."""

    used_by: ClassVar[str] = ""
    """Released models that use it."""

    gaps: Mapping[str, str] = {}
    """Known gaps: the name of a promise in `posenc.testing` -> why this encoding does not keep it."""

    def formula_added(self, position: float, channel: int) -> float:
        """As published, in scalars: the number added to one channel of the embedding at `position`."""
        return 0.0

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        """As published, in scalars: a head's query at `position`, as biases added to this encoding read it."""
        return q

    def formula_key(self, k: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        """As published, in scalars: a head's key at `position`, as biases added to this encoding read it."""
        return k

    def formula_logit(
        self, q: Sequence[float], k: Sequence[float], m: float, n: float, head: int, scale: float
    ) -> float:
        """As published, in scalars: the logit of a query at m on a key at n.

        By default it is the scaled product of both, rotated. Positions are tuples for an encoding of several axes.
        """
        return dot_product(self.formula_query(q, m, head), self.formula_key(k, n, head), scale)

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        """As published, in scalars: the logits of a query on its visible keys, if they are not independent."""
        return [self.formula_logit(query.vector, key.vector, query.at, key.at, head, scale) for key in keys]

    def formula_weights(self, logits: Sequence[float], query: Token, keys: Sequence[Token]) -> list[float]:
        """As published, in scalars: the weights of these logits under the attention rule; the softmax."""
        weights = [math.exp(logit - max(logits)) for logit in logits]
        return [weight / math.fsum(weights) for weight in weights]

    def formula_value(self, v: Sequence[float], m: float, n: float, channel: int) -> float:
        """As published, in scalars: a channel of the value at n, read by a query at m."""
        return v[channel]


def equation_lines(equation: str) -> list[str]:
    r"""Return the formulas of an `equation`, each in one line.

    >>> equation_lines("a = \n b \n\n c = d")
    ['a = b', 'c = d']
    """
    return [" ".join(formula.split()) for formula in re.split(r"\n\s*\n", equation.strip()) if formula]


def dot_product(q: Sequence[float], k: Sequence[float], scale: float = 1.0) -> float:
    """Return the logit of a query on a key without position."""
    return scale * math.fsum(a * b for a, b in zip(q, k, strict=True))


def logit_of_pair(
    self: Formulas, q: Sequence[float], k: Sequence[float], m: Any, n: Any, head: int, scale: float
) -> float:
    """Return the `formula_logit` of a class that defines `formula_logits`."""
    return self.formula_logits(Token(q, m, 0), [Token(k, n, 0)], head, scale)[0]


def has_own_logits(encoding: Formulas) -> bool:
    """Whether the class defines its own logits, beyond the product of rotated queries and keys."""
    cls = type(encoding)
    return (cls.formula_logit, cls.formula_logits) != (Formulas.formula_logit, Formulas.formula_logits)
