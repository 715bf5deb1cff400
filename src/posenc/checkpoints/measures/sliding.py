"""Perplexity with a bounded view: in windows that overlap, and of the same tokens behind more and more text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.extension.perplexity import LAST, Tokens, Work, check_ids, losses
from posenc.checkpoints.measures.measure import WHOLE, Detail, Number, Tell, Value, error_of
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


def sliding_losses(
    model: Any, ids: Tensor, window: int, *, opening: int = 0, chunk: int = 1024, tell: Tell | None = None
) -> Tensor:
    """-ln p (nats, float32) of each token but the first, given at most window - 1 before it: [T - 1] for ids [T].

    Windows of `window` tokens at a stride of half of it; each token is predicted in the first window that holds it, so
    that from the second window on it has between window/2 and window - 1 tokens before it. Memory and the cost of a
    token do not grow with the text.

    opening  how many tokens at the start of `ids` every window begins with, as every text of the model does

    Raises ValueError for fewer than two tokens, and a window of fewer than 4 tokens or without room behind the opening.
    Source: transformers' documentation, "Perplexity of fixed-length models".
    """
    check_ids(ids)
    stride = window // 2
    if window < 4 or opening + stride >= window:
        raise ValueError(
            f"a window must hold 4 tokens or more, half of them and {opening} opening ones behind one another, "
            f"got {window}"
        )
    found, end = [losses(model, ids[:window], chunk=chunk)], window
    while end < len(ids):
        end += stride
        piece = torch.cat((ids[:opening], ids[end - window + opening : end]))
        new = min(end, len(ids)) - (end - stride)
        found.append(losses(model, piece, chunk=chunk)[-new:])
        if tell is not None:
            tell(min(end, len(ids)) / len(ids))
    return torch.cat(found)


@dataclass(frozen=True, eq=False)
class SlidingPerplexity:
    """Perplexity in windows that overlap: what a model reads that is never shown more than it was trained for.

    text     the model's tokens
    start    the token of the text that the first text begins with
    texts    how many, each behind the one before
    longest  tokens of each, the longest length that is asked for
    window   tokens, the trained length of the model
    """

    text: Tokens
    longest: int
    window: int
    start: int = 0
    texts: int = 1
    chunk: int = 1024
    name: str = "sliding-perplexity"
    unit: str = "tokens"
    price: str = "mean"
    needs: float | None = None
    baselines: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    options: frozenset[str] = frozenset({"text", "samples", "start", "chunk"})
    numbers: tuple[Number, ...] = (
        Number("last", f"perplexity of the last {LAST} tokens", False),
        Number("mean", "perplexity of all tokens", False),
    )

    @property
    def on(self) -> str:
        return f"{self.text.name}, in windows of {self.window:,} tokens"

    @property
    def facts(self) -> dict[str, Any]:
        of = {name: getattr(self, name) for name in ("start", "texts", "longest", "window", "chunk")}
        return {"text": self.text.sha256, **of}

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        """The longest, which says the same of every shorter one: no window is longer than the model was trained for."""
        return (max(lengths),)

    def work(self, model: Any, length: int) -> float:
        each = Work.of(model).total(min(length, self.window))
        return self.texts * each * max(1.0, length / (self.window // 2) - 1)

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        """The losses of each text; raises ValueError where the text ends too early."""
        only_whole(self.name, how)
        found, opening = [], len(self.text.opening)
        for number in range(self.texts):
            ids = self.text.window(self.start + number * self.longest, length)
            share = part_of(tell, number, self.texts)
            of_text = sliding_losses(model, ids, self.window, opening=opening, chunk=self.chunk, tell=share)
            found.append([round(loss, 5) for loss in of_text.tolist()])
        return {"losses": found}

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        of = [torch.tensor(one)[: length - 1] for one in raw[max(raw)]["losses"]]
        return {"last": of_blocks([one[-LAST:] for one in of]), "mean": of_blocks(of)}

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class SameTokens:
    """Perplexity of the same tokens, behind more and more text: whether a longer text serves what comes next.

    The last tokens of a text are predicted once for each length, from so many tokens as fit in front of them. A text
    that is hard in one place is as hard at every length, so that differences are those of the view alone.

    text     the model's tokens
    longest  the longest length that is asked for; texts end where it ends
    last     tokens at the end that are predicted
    """

    text: Tokens
    longest: int
    start: int = 0
    texts: int = 2
    chunk: int = 1024
    last: int = LAST
    name: str = "same-tokens"
    unit: str = "tokens"
    price: str = "last"
    needs: float | None = None
    baselines: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    options: frozenset[str] = frozenset({"text", "samples", "start", "chunk"})

    @property
    def numbers(self) -> tuple[Number, ...]:
        return (Number("last", f"perplexity of the same {self.last} tokens", False),)

    @property
    def on(self) -> str:
        return f"{self.text.name}, {self.texts} times {self.last:,} tokens"

    @property
    def facts(self) -> dict[str, Any]:
        of = {name: getattr(self, name) for name in ("start", "texts", "longest", "last", "chunk")}
        return {"text": self.text.sha256, **of}

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        return tuple(lengths)

    def work(self, model: Any, length: int) -> float:
        return self.texts * Work.of(model).total(length)

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        """The losses of the last tokens of each text.

        Raises ValueError for a length that leaves no token before them, and where the text ends too early.
        """
        only_whole(self.name, how)
        if length <= self.last + len(self.text.opening):
            raise ValueError(f"the last {self.last:,} tokens of a text need more before them than {length:,} in all")
        found = []
        for number in range(self.texts):
            ids = self.window(number, length)
            of_text = losses(model, ids, chunk=self.chunk, tell=part_of(tell, number, self.texts))[-self.last :]
            found.append([round(loss, 5) for loss in of_text.tolist()])
        return {"losses": found}

    def window(self, number: int, length: int) -> Tensor:
        """The tokens [length] of a text that ends where the longest one ends."""
        return self.text.window(self.start + (number + 1) * self.longest - length, length)

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        return {"last": of_blocks([torch.tensor(one) for one in raw[length]["losses"]])}

    def details(self, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> tuple[Detail, ...]:
        return ()


def only_whole(name: str, how: str) -> None:
    """Raises ValueError for a baseline: the measure is one by itself."""
    if how != WHOLE:
        raise ValueError(f"{name} has no other way to use the model, got {quoted(how)}; leave it out")


def part_of(tell: Tell | None, done: int, parts: int) -> Tell | None:
    """Who is told of the whole, told of one of so many equal parts of it."""
    return None if tell is None else lambda share: tell((done + share) / parts)


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
