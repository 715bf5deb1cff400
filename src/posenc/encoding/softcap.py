"""Soft-caps of logits: scaled products of queries and keys are capped by a tanh, before biases are added."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from posenc.encoding.biases import Bias, BranchedLogits, Pairs, product
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, table_mod
from posenc.tokens.positions import Positions


def apply_softcap(logits: Tensor, softcap: float | None) -> Tensor:
    """Return c tanh(logits / c), or the logits without a cap."""
    return logits if softcap is None else softcap * (logits / softcap).tanh()


class SoftCap(nn.Module):
    """s -> c tanh(s / c) of the scaled products s = scale q . k.

    cap    c, above 0 (unitless)
    scale  factor of the logits

    Source: Gemma Team 2024, arXiv:2408.00118, section 2.
    """

    def __init__(self, cap: float, scale: float) -> None:
        super().__init__()
        self.cap, self.scale = cap, scale

    def forward(self, logits: Tensor) -> Tensor:
        return apply_softcap(logits, self.cap)

    def bias(self, encoding: object, q: Tensor, at: Positions, keys: Keys, biases: Sequence[Bias]) -> "SoftCapBias":
        """Return the cap as a bias, to go before the others. Raises ValueError if these change the products."""
        if any(isinstance(bias, BranchedLogits) for bias in biases):
            raise ValueError(
                f"{encoding} has other products for some of the pairs, which a soft-cap does not reach; leave out "
                f"softcap, or take another encoding"
            )
        return SoftCapBias(self.difference, q, at, Keys(keys.k, keys.k, keys.at), reads_between=False)

    def difference(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        """Return the closure of c tanh(s / c) - s, which kernels add to the product."""
        logits = product(q, keys.k) * self.scale
        return table_mod(self(logits) - logits)


@dataclass(frozen=True, eq=False)
class SoftCapBias(Pairs):
    """A soft-cap as the first of all biases; its closure caps the score itself."""

    def closure(self) -> ScoreMod:
        cap = self.module

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return cap(score)

        return score_mod
