"""A kernel bound to the settings of one attention layer, as door 4 of an encoding receives it."""

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
from posenc.tokens.tracing import is_recomputed


class GivesBiases(Hashable, Protocol):
    """The part of an encoding that a kernel reads: its open doors and its biases."""

    doors: frozenset[str]

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel bound to the settings of one attention layer, as door 4 receives it.

    kernel          (biases, q, at, keys, mask, *, scale, dropout, need_weights, sinks=None) -> output, weights or None
    logits_on_grid  (biases, q, at, keys, *, scale) -> [B, H, T, S], for other rules than the softmax
    take_values     (weights [B, H, T, S], v, dropout) -> (output, weights after dropout)
    scale           factor of the logits
    dropout         share of the weights dropped
    need_weights    whether to return the weights
    other_parts     the other parts of a sum of encodings; their biases are added too
    shared_biases   biases shared by the layers of a pass, by their inputs; None: not shared
    sums            if a list, append the log-sum-exp [B, H, T] (-inf for empty rows)
    sinks           a logit [H] of each head that takes part in the softmax and has no value; None: no sinks
    softcap         cap of the scaled products, before biases are added; None: no cap
    """

    kernel: Callable[..., tuple[Tensor, Tensor | None]]
    logits_on_grid: Callable[..., Tensor]
    take_values: Callable[..., tuple[Tensor, Tensor]]
    scale: float
    dropout: float
    need_weights: bool
    other_parts: tuple[GivesBiases, ...] = ()
    shared_biases: dict[Hashable, list[Bias]] | None = None
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
        """Compute softmax attention with the encoding's biases, or the given ones, and those of the other parts."""
        mask, all_biases = self.mask_and_biases(encoding, q, at, keys, mask, biases)
        with_weights = self.need_weights if need_weights is None else need_weights
        options: dict[str, Any] = {"scale": self.scale, "dropout": self.dropout, "need_weights": with_weights}
        if self.sums is not None:
            options["sums"] = self.sums
        if self.sinks is not None:
            options["sinks"] = self.sinks
        return self.kernel(all_biases, q, at, keys, mask, **options)

    def logits(self, encoding: GivesBiases, q: Tensor, at: Positions, keys: Keys, mask: Mask) -> Tensor:
        """Return the scaled logits [B, H, T, S] with all biases and a floating mask.

        They are float32 at least. Hidden keys are not marked in them; see `mask.allowed(at, keys.at)`.
        Raises ValueError for an encoding with its own rule if heads have sinks.
        """
        if self.sinks is not None:
            raise ValueError(
                f"{encoding} weighs keys by a rule of its own, and sinks take part in the softmax; build the attention "
                f"with sinks=False, or take another encoding"
            )
        mask, all_biases = self.mask_and_biases(encoding, q, at, keys, mask)
        return self.logits_on_grid(all_biases, q, at, keys, scale=self.scale)

    def finish(self, weights: Tensor, keys: Keys) -> tuple[Tensor, Tensor | None]:
        """Return the output [B, H, T, E] of a rule's weights [B, H, T, S]. The weights come along if needed."""
        output, dropped_weights = self.take_values(weights, keys.v, dropout=self.dropout)
        return output, dropped_weights if self.need_weights else None

    def mask_and_biases(
        self,
        encoding: GivesBiases,
        q: Tensor,
        at: Positions,
        keys: Keys,
        mask: Mask,
        biases: Sequence[Bias] | None = None,
    ) -> tuple[Mask, list[Bias]]:
        """Return the boolean mask, and all biases to add to the logits."""
        mask_bias = None
        if mask.tensor is not None:
            check_mask(mask.tensor, q.shape[2], keys.k.shape[2], q.shape[0], q.shape[1])
            mask, mask_bias = mask.split()
        all_biases = [] if biases is None else list(biases)
        parts = self.other_parts if biases is not None else (encoding, *self.other_parts)
        for part in parts:
            if not part.doors.isdisjoint(BIASES):
                all_biases += self.biases(part, q, at, keys)
        if self.softcap is not None:
            all_biases.insert(0, SoftCap(self.softcap, self.scale).bias(encoding, q, at, keys, all_biases))
        return mask, all_biases if mask_bias is None else [*all_biases, Dense(mask_bias)]

    def biases(self, part: GivesBiases, q: Tensor, at: Positions, keys: Keys) -> list[Bias]:
        """Return the biases of a part. Biases of the distance alone are shared by layers with the same tokens."""
        if self.shared_biases is None or "biases" in part.doors or is_recomputed():
            with without_autocast(q):
                return part.biases(q, at, keys)
        key = part, at, keys.at, q.shape[:2]
        if key not in self.shared_biases:
            with without_autocast(q):
                self.shared_biases[key] = part.biases(q, at, keys)
        return self.shared_biases[key]
