"""Perplexity of the same tokens behind more and more text, with errors that one window can give."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.checkpoints.measures.measure import WHOLE, Detail, Number, Tell, TooShort, Value, error_of, part_of
from posenc.checkpoints.measures.perplexity import DEVICE, LAST, Tokens, batch_in_facts, losses
from posenc.checkpoints.measures.work import Work
from posenc.foreign import quoted

BLOCK = 32
"""Losses of neighbours go up and down together, so that errors are those of means over so many tokens."""


def of_blocks(windows: Sequence[Tensor]) -> Value:
    """The perplexity of tokens, from their losses [n] (nats) in each window, with its error.

    The samples are means over blocks of tokens, as near to BLOCK tokens as windows of this length allow. The
    perplexity is exp of the mean over all tokens, and its error that times the standard error of the blocks' mean.

    >>> of_blocks([torch.full((64,), 2.0)]) == Value(math.exp(2), 0.0, (2.0, 2.0))
    True
    """
    parts = [part.double().mean().item() for window in windows for part in window.tensor_split(blocks(len(window)))]
    mean = torch.cat(list(windows)).double().mean().item()
    # Beyond this a double has no exponential, and nothing is learned from it.
    value, error = math.exp(min(mean, 700.0)), error_of(parts)
    return Value(value, None if error is None else value * error, tuple(parts))


def blocks(tokens: int) -> int:
    return max(1, round(tokens / BLOCK))


@dataclass(frozen=True, eq=False)
class SameTokens:
    """Perplexity of the same tokens, behind more and more text: whether a longer text serves what comes next.

    The last tokens of a text are predicted once for each length, from so many tokens as fit in front of them. A text
    that is hard in one place is as hard at every length, so that differences are those of the view alone.

    text     the model's tokens
    longest  the longest length that is asked for; texts end where it ends
    last     tokens at the end that are predicted
    batch    how many texts go through the model side by side
    cache    where keys are kept: "device" or "cpu"
    """

    text: Tokens
    longest: int
    start: int = 0
    texts: int = 2
    chunk: int = 1024
    last: int = LAST
    batch: int = 1
    cache: str = DEVICE
    name: ClassVar = "same-tokens"
    unit: ClassVar = "tokens"
    price: ClassVar = "last"
    needs: ClassVar = None
    baselines: ClassVar[Mapping[str, str]] = {}
    options: ClassVar = frozenset({"text", "samples", "start", "chunk", "batch", "cache"})

    @property
    def numbers(self) -> tuple[Number, ...]:
        return (Number("last", f"perplexity of the same {self.last} tokens", False),)

    @property
    def on(self) -> str:
        return f"{self.text.name}, {self.texts} times {self.last:,} tokens"

    @property
    def facts(self) -> dict[str, Any]:
        of = {name: getattr(self, name) for name in ("start", "texts", "longest", "last", "chunk")}
        return {"text": self.text.sha256, **of} | batch_in_facts(min(self.batch, self.texts))

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths)

    def work(self, model: Any, length: int) -> float:
        return self.texts * Work.of(model).total(length)

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        """The losses of the last tokens of each text.

        Raises ValueError for a length that leaves no token before them, and where the text ends too early.
        """
        if how != WHOLE:
            raise ValueError(f"{self.name} has no other way to use the model, got {quoted(how)}; leave it out")
        if length <= self.last + len(self.text.opening):
            raise TooShort(f"the last {self.last:,} tokens of a text need more before them than {length:,} in all")
        found: list[list[float]] = []
        for first in range(0, self.texts, self.batch):
            ids = torch.stack([self.window(n, length) for n in range(first, min(first + self.batch, self.texts))])
            share = part_of(tell, first, self.texts, len(ids))
            of_texts = losses(model, ids, chunk=self.chunk, tell=share, last=self.last, cache=self.cache)
            found += [[round(loss, 5) for loss in one] for one in of_texts.tolist()]
        return {"losses": found, "read": self.texts * length}

    def window(self, number: int, length: int) -> Tensor:
        """The tokens [length] of a text that ends where the longest one ends."""
        return self.text.window(self.start + (number + 1) * self.longest - length, length)

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        return {"last": of_blocks([torch.tensor(one) for one in raw[length]["losses"]])}

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        return ()


def useful_length(values: Mapping[int, Value]) -> tuple[int, int | None]:
    """Up to which length more text helps, and from which it harms: lengths, from values of the same tokens.

    A length helps where the mean loss lies below that at the best length before by more than two standard errors of
    their difference, block by block; the first that lies above it by as much harms.

    >>> of = {n: Value(0, None, each) for n, each in ((8, (3., 4.)), (16, (2., 3.)), (32, (2., 3.)), (64, (5., 6.)))}
    >>> useful_length(of)
    (16, 64)
    """
    lengths = sorted(values)
    best, harms = lengths[0], None
    for length in lengths[1:]:
        change, error = difference(values[best], values[length])
        if change < -2 * error:
            best, harms = length, None
        elif change > 2 * error and harms is None:
            harms = length
    return best, harms


def difference(before: Value, after: Value) -> tuple[float, float]:
    """The change of a mean from one value to another (nats), sample by sample, and its standard error."""
    changes = [b - a for a, b in zip(before.each, after.each, strict=True)]
    return math.fsum(changes) / len(changes), error_of(changes) or 0.0
