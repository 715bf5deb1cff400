"""An encoding on some heads; the other heads have no position."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posenc.encoding.base import Encoding, Moves, Side
from posenc.encoding.biases import Bias, spread_heads
from posenc.encoding.formulas import Token, dot_product, logit_of_pair
from posenc.encoding.keys import Keys
from posenc.foreign import quote
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import number_tensor


class OnHeads(Encoding):
    """An encoding on some heads: `on(rotary, heads=(0, 1))`; the other heads have no position.

    `encoding` is built for these heads alone; `of` is the number of query heads of the model. With fewer key heads
    than query heads, all query heads of a key head must be included.
    Raises ValueError for heads that do not exist or occur twice, and for encodings without heads (doors 1 and 4).
    """

    def __init__(self, encoding: Encoding, heads: Sequence[int], of: int) -> None:
        super().__init__()
        numbers = tuple(heads)
        if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= of:
            raise ValueError(f"heads must be different numbers from 0 to {of - 1}, got {quote(numbers)}")
        for door in ("embed", "attend", "remember"):
            if door in encoding.doors:
                raise ValueError(
                    f"{encoding} opens the door '{door}', which knows no heads; "
                    f"on(...) takes rotary-like and bias encodings"
                )
        self.encoding, self.heads, self.of = encoding, numbers, of
        self.doors, self.per_layer = encoding.doors, encoding.per_layer
        self.queries_together = encoding.queries_together
        self.axes, self.reads_keys, self.between = encoding.axes, encoding.reads_keys, encoding.between
        self.turns, self.turns_when_attending = encoding.turns, encoding.turns_when_attending

    @property
    def wavelengths(self) -> Tensor | None:
        return self.encoding.wavelengths

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        if "turn" not in self.doors:
            return x
        index = number_tensor(self.own_heads(x.shape[1]), torch.long, x.device)
        rotated = self.encoding.turn(x[:, index], at, side)
        if rotated.shape[-1] != x.shape[-1]:
            raise ValueError(
                f"{self.encoding} makes heads of {x.shape[-1]} channels {rotated.shape[-1]} wide, and the heads beside "
                f"them stay as they are; use it on all heads"
            )
        return x.index_copy(1, index, rotated)

    @property
    def moves(self) -> Moves:
        return self.encoding.moves

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        if "turn" not in self.doors:
            return super().moved(k, old_at, new_at)
        index = number_tensor(self.own_heads(k.shape[1]), torch.long, k.device)
        return k.index_copy(1, index, self.encoding.moved(k[:, index], old_at, new_at))

    def own_heads(self, heads: int) -> Sequence[int]:
        """Return the encoded heads among `heads` query or key heads.

        Raises ValueError if a key head serves both encoded and other query heads.
        """
        group = self.of // heads
        groups = sorted({head // group for head in self.heads})
        if group == 1:
            return self.heads
        if len(groups) * group != len(self.heads):
            raise ValueError(
                f"{group} query heads share each key head, so the chosen heads must come in whole groups "
                f"of {group}, got {self.heads}"
            )
        return groups

    def by_distance(self, delta: Tensor) -> Tensor | None:
        values = self.encoding.by_distance(delta)
        return None if values is None else spread_heads(values, 0, self.heads, self.of)

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        if q is not None:
            if q.shape[1] != self.of:
                raise ValueError(
                    f"{self} is for {self.of} heads, got queries of {q.shape[1]}; build it for {q.shape[1]}"
                )
            index = number_tensor(self.heads, torch.long, q.device)
            if self.reads_keys:
                keys = replace(keys, k=keys.k.repeat_interleave(self.of // keys.k.shape[1], 1)[:, index])
            q = q[:, index]
        return [bias.on_heads(self.heads, self.of) for bias in self.encoding.biases(q, at, keys)]

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        raise NotImplementedError(
            f"{self} turns the queries of some heads only, and a formula of one query lacks its head"
        )

    formula_logit = logit_of_pair

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        if head not in self.heads:
            return [dot_product(query.vector, key.vector, scale) for key in keys]
        return self.encoding.formula_logits(query, keys, self.heads.index(head), scale)

    def __repr__(self) -> str:
        return f"on({self.encoding}, heads={self.heads})"

    __str__ = __repr__
