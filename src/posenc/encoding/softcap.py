"""Soft-caps of logits: the scaled products of queries and keys are drawn below a cap, before biases are added."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from posenc.encoding.biases import Bias, Branched, Pairs, product
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, looked_up
from posenc.tokens.positions import Positions


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """c tanh(logits / c), or the logits where there is no cap."""
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
        return capped(logits, self.cap)

    def bias(self, encoding: object, q: Tensor, at: Positions, keys: Keys, others: Sequence[Bias]) -> "Capped":
        """The cap as a bias, which goes before the others. Raises ValueError where these change the products."""
        if any(isinstance(bias, Branched) for bias in others):
            raise ValueError(
                f"{encoding} has other products for some of the pairs, which a soft-cap does not reach; leave out "
                f"softcap, or take another encoding"
            )
        return Capped(self.difference, q, at, Keys(keys.k, keys.k, keys.at), reads_between=False)

    def difference(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        """c tanh(s / c) - s, for kernels that add it to the product."""
        logits = product(q, keys.k) * self.scale
        return looked_up(self(logits) - logits)


@dataclass(frozen=True, eq=False)
class Capped(Pairs):
    """A soft-cap, the first of all biases: kernels with the product at hand cap that."""

    def closure(self) -> ScoreMod:
        cap = self.module

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return cap(score)

        return score_mod
