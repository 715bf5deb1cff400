"""What the papers say of an encoding: its formulas in scalars, its source, what it claims and who uses it.

A formula is the definition that the fast code is held to, one logit and one pair at a time. It may read an encoding's
options and parameters, and never a table that is computed from them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple


class Token(NamedTuple):
    """One query or key of one head, in scalars, as the published formulas see it.

    vector   its query or key (channels)
    at       its coordinate, or one for each axis when there are several
    order    its place in the sequence
    memo     what the encoding remembers of it: name -> a number, or a list of them
    horizon  the declared length of its sequence, if there is one
    """

    vector: Sequence[float]
    at: Any
    order: int
    memo: Mapping[str, Any] = {}
    horizon: float | None = None


class Published:
    """What was published of an encoding: formulas that an encoding overrides, and words about it."""

    equation: ClassVar[str] = ""
    r"""What the docstring's equation says, typeset: formulas in LaTeX, an empty line between two, `\text` for words."""

    source: ClassVar[str] = ""
    """Where the encoding was published: authors, year, arXiv id and section."""

    also_called: ClassVar[tuple[str, ...]] = ()
    """Other names by which people look for it: a wrong name in a spec is answered with the right one."""

    extrapolates: ClassVar[str] = ""
    """Beyond the trained length: what is claimed, and what was found."""

    used_by: ClassVar[str] = ""
    """Released models that use it."""

    gaps: Mapping[str, str] = {}
    """Known gaps: the name of a promise in `posenc.testing` -> why this encoding does not keep it."""

    def formula_added(self, position: float, channel: int) -> float:
        """As published, in scalars: what is added to one channel of the embedding of a token at `position`."""
        return 0.0

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        """As published, in scalars: a head's query at `position` as the biases beside this encoding see it."""
        return q

    def formula_key(self, k: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        """As published, in scalars: a head's key at `position` as the biases beside this encoding see it."""
        return k

    def formula_logit(
        self, q: Sequence[float], k: Sequence[float], m: float, n: float, head: int, scale: float
    ) -> float:
        """As published, in scalars: the logit of a query at m on a key at n; by default the product of both, turned.

        Positions are tuples for an encoding that reads several axes.
        """
        return dot_product(self.formula_query(q, m, head), self.formula_key(k, n, head), scale)

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        """As published, in scalars: the logits of a query on the keys that it may see, where one pair is not enough."""
        return [self.formula_logit(query.vector, key.vector, query.at, key.at, head, scale) for key in keys]

    def formula_weights(self, logits: Sequence[float], query: Token, keys: Sequence[Token]) -> list[float]:
        """As published, in scalars: the weights that the attention rule makes of the logits; the softmax."""
        weights = [math.exp(logit - max(logits)) for logit in logits]
        return [weight / math.fsum(weights) for weight in weights]

    def formula_value(self, v: Sequence[float], m: float, n: float, channel: int) -> float:
        """As published, in scalars: one channel of the value that a key at n hands to a query at m."""
        return v[channel]


def formulas_of(equation: str) -> list[str]:
    r"""The formulas of an `equation`, each in one line.

    >>> formulas_of("a = \n b \n\n c = d")
    ['a = b', 'c = d']
    """
    return [" ".join(formula.split()) for formula in re.split(r"\n\s*\n", equation.strip()) if formula]


def dot_product(q: Sequence[float], k: Sequence[float], scale: float = 1.0) -> float:
    """The logit of a query on a key without any position."""
    return scale * math.fsum(a * b for a, b in zip(q, k, strict=True))


def logit_of_a_pair(
    self: Published, q: Sequence[float], k: Sequence[float], m: Any, n: Any, head: int, scale: float
) -> float:
    """The `formula_logit` of a class that says `formula_logits`."""
    return self.formula_logits(Token(q, m, 0), [Token(k, n, 0)], head, scale)[0]


def has_own_logits(published: Published) -> bool:
    """Whether a formula of its own says how queries meet keys, and not the product of both as they are turned."""
    cls = type(published)
    return (cls.formula_logit, cls.formula_logits) != (Published.formula_logit, Published.formula_logits)
