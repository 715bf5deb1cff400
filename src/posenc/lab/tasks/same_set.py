"""Say whether two words are made of the same letters, in whatever order: abc|CAB -> +."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, LETTERS, SEPARATOR, LetterTask, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class SameSet(LetterTask):
    """Say whether two words are made of the same letters, in whatever order: abc|CAB -> +.

    The control for order: the second word is in capitals, so a bag of tokens is enough, and a model without position
    can learn it, whereas in `order_class` it can only guess. The answer, + or -, stands at the first token, and the
    model sees all tokens.

    The length is the number of letters of each word, all different; where the answer is -, one letter differs.

    symbols  how many different letters there are

    Raises ValueError for words that need more letters than there are.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5 (without position, a transformer knows no order).
    """

    symbols: int = 20

    also_called = ("anagram", "set", "bag", "same", "letters", "compare")
    recipe = MappingProxyType(
        {"train_length": 8, "steps": 1500, "batch": 64, "rate": 2e-3, "curriculum": 0.24, "cool_down": 100}
    )
    reads = "encoder"

    def __post_init__(self) -> None:
        self.hold(checks.whole, symbols=2)
        if self.symbols > len(LETTERS) // 2:
            raise ValueError(f"{self.spec_name}: symbols must be at most {len(LETTERS) // 2}, got {self.symbols}")

    @property
    def letters(self) -> str:
        small = LETTERS[: self.symbols]
        return f"{small}{small.upper()}+-"

    def tokens(self, length: int) -> int:
        return 2 * length + 2  # BOS, a word, SEPARATOR, and the other word

    def chance(self, length: int) -> float:
        return 0.5

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if not 1 <= length < self.symbols:
            raise ValueError(f"{self} has words of 1 to {self.symbols - 1} letters, got {length}")
        letters = torch.rand(rows, self.symbols, generator=generator).argsort(1)
        is_same = torch.randint(0, 2, (rows, 1), generator=generator) == 1
        word = letters[:, :length]
        other_word = torch.cat((word[:, :-1], letters[:, length : length + 1]), 1)
        order = torch.rand(rows, length, generator=generator).argsort(1)
        second = torch.where(is_same, word, other_word).gather(1, order)
        ids = torch.cat((column(rows, BOS), 3 + word, column(rows, SEPARATOR), 3 + self.symbols + second), 1)
        answer = torch.where(is_same, self.id("+"), self.id("-"))
        return Batch(ids, torch.cat((answer, ids[:, 1:]), 1), torch.arange(ids.shape[1]) == 0)
