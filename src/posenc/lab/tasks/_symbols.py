"""The base of tasks written in letters: ids, and sequences of a prompt, a separator and an answer."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from posenc import checks
from posenc.lab.tasks._task import Batch, Task

BOS, SEPARATOR, END = 0, 1, 2
"""The special ids of tasks on symbols; symbols begin at 3. Every sequence starts with BOS: without an anchor a model
without position cannot count (its output on a constant sequence is constant)."""

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, kw_only=True)
class LetterTask(Task):
    """The base of tasks whose tokens are letters: ids from 3 on, after BOS, SEPARATOR and END."""

    separator: ClassVar[str] = "|"
    """The letter of SEPARATOR in a prompt."""

    @property
    def letters(self) -> str:
        """The letters of the ids from 3 on."""
        raise NotImplementedError(f"{self} does not say its letters: how its ids from 3 on are written")

    @property
    def vocab(self) -> int:
        return 3 + len(self.letters)

    def encode(self, text: str) -> list[int]:
        wrong = sorted({letter for letter in text if letter not in self.letters + self.separator})
        if wrong:
            raise ValueError(
                f"a prompt for this task is written in {self.letters} and {self.separator}, "
                f"got {', '.join(map(repr, wrong))}"
            )
        return [BOS, *(SEPARATOR if letter == self.separator else 3 + self.letters.index(letter) for letter in text)]

    def decode(self, ids: list[int]) -> str:
        words = {BOS: "^", SEPARATOR: self.separator, END: "."}
        return "".join(words.get(i) or self.letters[i - 3] for i in ids)

    def id(self, letter: str) -> int:
        """The id of a letter."""
        return 3 + self.letters.index(letter)


@dataclass(frozen=True, kw_only=True)
class Symbols(LetterTask):
    """Base of the tasks on any symbols: `symbols` different ones, written a, b, c, ...

    A prompt of n symbols, a separator, and an answer of n symbols that ends with END, unless a task says otherwise.
    """

    symbols: int = 26

    def __post_init__(self) -> None:
        self.hold(checks.whole, symbols=1)
        if self.symbols > len(LETTERS):
            raise ValueError(f"{self.spec_name}: symbols must be at most {len(LETTERS)}, got {self.symbols}")

    @property
    def letters(self) -> str:
        return LETTERS[: self.symbols]

    def tokens(self, length: int) -> int:
        return 2 * length + 2  # BOS, the prompt, SEPARATOR, and the answer without its END

    def chance(self, length: int) -> float:
        return float(self.symbols) ** -length


def column(rows: int, token: int) -> Tensor:
    """One token for each row, [rows, 1]."""
    return torch.full((rows, 1), token)


def prompt_and_answer(prompt: Tensor, answer: Tensor) -> Batch:
    """Return BOS prompt SEPARATOR answer END, for prompts [B, n] and answers [B, m]. The answer and its END count."""
    rows, n = prompt.shape
    sequence = torch.cat((column(rows, BOS), prompt, column(rows, SEPARATOR), answer, column(rows, END)), 1)
    return Batch.of_next(sequence, torch.arange(sequence.shape[1] - 1) > n)


def random_symbols(length: int, rows: int, symbols: int, generator: Generator) -> Tensor:
    """Symbols [rows, length], drawn independently."""
    return torch.randint(3, 3 + symbols, (rows, length), generator=generator)


@dataclass(frozen=True, kw_only=True)
class Rewrite(Symbols):
    """Base of the tasks whose answer rewrites a random prompt; `rewrite` makes the answer."""

    def rewrite(self, prompt: Tensor) -> Tensor:
        """The answers [B, m] of prompts [B, n]."""
        raise NotImplementedError(f"{self} has no rewrite(prompt), which makes the answer of a prompt")

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(length, rows, self.symbols, generator)
        return prompt_and_answer(prompt, self.rewrite(prompt))
