"""Say whether two words are made of the same letters, in whatever order: abc|CAB -> +."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, LETTERS, SEPARATOR, Lettered, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class SameSet(Lettered):
    """Say whether two words are made of the same letters, in whatever order: abc|CAB -> +.

    The control for order: the second word is in capitals, so a bag of tokens is enough, and a model without position
    has to learn it. With `ordered` the letters are always the same, and the question is whether the order is: then a
    model without position can only guess. The answer, + or -, is to be said at the first token, by a model that sees
    all tokens.

    The length is the number of letters of each word, all of them different.

    symbols  how many different letters there are
    ordered  whether the words differ in their order, and not in one of their letters

    Raises ValueError for words that need more letters than there are, and for one letter in order.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5 (without position, a transformer knows no order).
    """

    symbols: int = 20
    ordered: bool = False

    source = "Vaswani et al. 2017, arXiv:1706.03762, section 3.5"
    reads = "encoder"

    def __post_init__(self) -> None:
        self.hold(checks.whole, symbols=2)
        checks.one_of(f"{self.spec_name}: ordered", self.ordered, (True, False))
        if self.symbols > len(LETTERS) // 2:
            raise ValueError(f"same_set: symbols must be at most {len(LETTERS) // 2}, got {self.symbols}")

    @property
    def letters(self) -> str:
        small = LETTERS[: self.symbols]
        return f"{small}{small.upper()}+-"

    def tokens(self, length: int) -> int:
        return 2 * length + 2  # BOS, a word, SEPARATOR, and the other word

    def lengths(self, longest: int) -> Sequence[int]:
        return range(2 if self.ordered else 1, longest + 1)

    def chance(self, length: int) -> float:
        return 0.5

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        most = self.symbols if self.ordered else self.symbols - 1
        if not self.lengths(most)[0] <= length <= most:
            raise ValueError(f"{self} has words of {self.lengths(most)[0]} to {most} letters, got {length}")
        letters = torch.rand(rows, self.symbols, generator=generator).argsort(1)
        same = torch.randint(0, 2, (rows, 1), generator=generator) == 1
        word = letters[:, :length]
        order = torch.rand(rows, length, generator=generator).argsort(1)
        if self.ordered:
            kept = torch.arange(length)
            # An order that came out as it was is turned by one.
            other = torch.where((order == kept).all(1, keepdim=True), (kept + 1) % length, order)
            second = word.gather(1, torch.where(same, kept, other))
        else:
            other = torch.cat((word[:, :-1], letters[:, length : length + 1]), 1)
            second = torch.where(same, word, other).gather(1, order)
        ids = torch.cat((column(rows, BOS), 3 + word, column(rows, SEPARATOR), 3 + self.symbols + second), 1)
        said = torch.where(same, self.id("+"), self.id("-"))
        return Batch(ids, torch.cat((said, ids[:, 1:]), 1), torch.arange(ids.shape[1]) == 0)
