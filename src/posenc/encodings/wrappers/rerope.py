"""ReRoPE and leaky ReRoPE."""

from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.precision import most_exact
from posenc.encodings.wrappers import BranchCoords, DistanceMap


class ReRoPE(DistanceMap):
    """Clip an encoding's distances at the edge of a window, or let them grow slowly beyond it.

    distance(n) = n                              for |n| < window
                  sign(n) (window + (|n| - window) / leak)   from there;  leak = infinity keeps it at the window

    encoding  the encoding that reads these distances: rotary-like, or a bias by distance
    window    distance (positions) from which it is clipped, below the trained length
    leak      how many positions count as one past the window (unitless, 1 or more); None is ReRoPE, a number leaky
              ReRoPE. With leak = 1 nothing is changed

    The authors also multiply queries by max(1, ln(p + 1) / ln(trained length)): add log_temperature for that. Keys are
    cached unturned, and each call turns them twice and takes two products: twice the work of plain attention, and the
    logits are in memory.

    Where it goes wrong: ReRoPE tells tokens past its window apart by their content only. It is the cleanest evidence
    that unseen distances are what breaks rotary past the trained length.

    Raises ValueError for a window or leak below 1, and for an encoding that reads more than a distance.
    Source: Su 2023, "ReRoPE", github.com/bojone/rerope.

    >>> from posenc import Rotary
    >>> ReRoPE(Rotary(8), window=4).formula_positions(10, 1)
    (4, 0)
    """

    equation = r"""
    \text{distance}(n) = \begin{cases} n & |n| < \text{window} \\ \operatorname{sign}(n) \left( \text{window} +
    \frac{|n| - \text{window}}{\text{leak}} \right) & |n| \ge \text{window} \end{cases}
    """
    source = "Su 2023, github.com/bojone/rerope"
    also_called = ("leaky_rerope", "rectified_rotary")
    extrapolates = "to any length untuned, claimed and found: Llama-2-13B's loss is 1.50, 1.43, 1.40 at 4k, 8k, 16k"

    def __init__(self, encoding: Encoding, *, window: int = 512, leak: float | None = None) -> None:
        checks.sizes(window=window)
        checks.at_least("leak", leak, 1, " (positions that count as one), or None for no leak")
        super().__init__(encoding)
        self.window, self.leak = window, leak

    def branches(self) -> list[BranchCoords]:
        share = 0.0 if self.leak is None else 1 / self.leak
        step = self.window * (1 - share)

        def leaky(coords: Tensor) -> Tensor:
            # A whole coordinate times a fraction would be float32.
            return most_exact(coords) * share

        return [
            BranchCoords(lambda m: leaky(m) + step, leaky, lambda m, n: m - n >= self.window),
            BranchCoords(lambda m: leaky(m) - step, leaky, lambda m, n: m - n <= -self.window),
        ]

    def formula_positions(self, m: float, n: float) -> tuple[float, float]:
        distance, sign = abs(m - n), 1 if m > n else -1
        if distance < self.window:
            return m, n
        past = 0 if self.leak is None else (distance - self.window) / self.leak
        return sign * (self.window + past), 0
