"""A kernel with what one attention layer asks of it, as door 4 of an encoding gets it."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from posenc.encoding.biases import BIASES, Bias, Dense
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.encoding.softcap import SoftCap
from posenc.tokens.masks import Mask, check_mask
from posenc.tokens.positions import Positions
from posenc.tokens.watched import is_recomputed


class GivesBiases(Hashable, Protocol):
    """What a kernel reads of an encoding: which of its doors are open, and its biases."""

    doors: frozenset[str]

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel with what one attention layer asks of it, as door 4 gets it.

    kernel          (biases, q, at, keys, mask, *, scale, dropout, need_weights, sinks=None) -> output, weights or None
    logits_on_grid  (biases, q, at, keys, *, scale) -> [B, H, T, S], for other rules than the softmax
    take_values     (weights [B, H, T, S], v, dropout) -> (output, the weights as applied)
    scale           factor of the logits
    dropout         share of the weights dropped
    need_weights    whether the weights are wanted
    beside          the other parts of a sum that the calling encoding is a part of: their biases are added too
    shared          biases that the layers of one pass share, by what they are made of; None: no layer shares any
    sums            where to note the logarithm of each query's sum of exponentials, [B, H, T], -inf for a query that
                    sees no key; None: nobody goes on with it
    sinks           of each head a logit [H] that takes part in the softmax and has no value; None: no head has one
    softcap         what the scaled products are drawn below, before biases are added; None: they are as they are
    """

    kernel: Callable[..., tuple[Tensor, Tensor | None]]
    logits_on_grid: Callable[..., Tensor]
    take_values: Callable[..., tuple[Tensor, Tensor]]
    scale: float
    dropout: float
    need_weights: bool
    beside: tuple[GivesBiases, ...] = ()
    shared: dict[Hashable, list[Bias]] | None = None
    sums: list[Tensor] | None = None
    sinks: Tensor | None = None
    softcap: float | None = None

    def __call__(
        self,
        encoding: GivesBiases,
        q: Tensor,
        at: Positions,
        keys: Keys,
        mask: Mask,
        *,
        biases: Sequence[Bias] | None = None,
        need_weights: bool | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Plain attention with the encoding's biases, or with those that it gives, and of what stands beside it."""
        mask, added = self.added(encoding, q, at, keys, mask, biases)
        wanted = self.need_weights if need_weights is None else need_weights
        asked: dict[str, Any] = {"scale": self.scale, "dropout": self.dropout, "need_weights": wanted}
        if self.sums is not None:
            asked["sums"] = self.sums
        if self.sinks is not None:
            asked["sinks"] = self.sinks
        return self.kernel(added, q, at, keys, mask, **asked)

    def logits(self, encoding: GivesBiases, q: Tensor, at: Positions, keys: Keys, mask: Mask) -> Tensor:
        """The scaled logits [B, H, T, S] in float32 at least, with all biases and what the mask adds.

        What the mask forbids is not marked in them; `mask.allowed(at, keys.at)` says it.
        Raises ValueError where an encoding has a rule of its own, and heads have sinks.
        """
        if self.sinks is not None:
            raise ValueError(
                f"{encoding} weighs keys by a rule of its own, and sinks take part in the softmax; build the attention "
                f"with sinks=False, or take another encoding"
            )
        mask, added = self.added(encoding, q, at, keys, mask)
        return self.logits_on_grid(added, q, at, keys, scale=self.scale)

    def finish(self, weights: Tensor, keys: Keys) -> tuple[Tensor, Tensor | None]:
        """The output [B, H, T, E] of an attention rule's own weights [B, H, T, S], with dropout, and the weights."""
        out, applied = self.take_values(weights, keys.v, dropout=self.dropout)
        return out, applied if self.need_weights else None

    def added(
        self,
        encoding: GivesBiases,
        q: Tensor,
        at: Positions,
        keys: Keys,
        mask: Mask,
        biases: Sequence[Bias] | None = None,
    ) -> tuple[Mask, list[Bias]]:
        """Who may see whom, and all that is added to the logits."""
        given = None
        if mask.given is not None:
            check_mask(mask.given, q.shape[2], keys.k.shape[2], q.shape[0], q.shape[1])
            mask, given = mask.split()
        added = [] if biases is None else list(biases)
        asked = self.beside if biases is not None else (encoding, *self.beside)
        for part in asked:
            if not part.doors.isdisjoint(BIASES):
                added += self.biases(part, q, at, keys)
        if self.softcap is not None:
            added.insert(0, SoftCap(self.softcap, self.scale).bias(encoding, q, at, keys, added))
        return mask, added if given is None else [*added, Dense(given)]

    def biases(self, part: GivesBiases, q: Tensor, at: Positions, keys: Keys) -> list[Bias]:
        """The biases of a part; those of distances alone are the same in every layer where the tokens are the same."""
        if self.shared is None or "biases" in part.doors or is_recomputed():
            with without_autocast(q):
                return part.biases(q, at, keys)
        key = part, at, keys.at, q.shape[:2]
        if key not in self.shared:
            with without_autocast(q):
                self.shared[key] = part.biases(q, at, keys)
        return self.shared[key]
