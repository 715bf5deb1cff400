"""Tasks to train on: one file each, found by name like encodings."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from torch import Generator, Tensor

from posenc.foreign import near, quoted

HOME = Path(__file__).parent

BOS, SEPARATOR, END = 0, 1, 2
"""Ids that the tasks on symbols share; symbols begin at 3. Every sequence starts with BOS: without an anchor a model
without position cannot count (its output on a constant sequence is constant)."""

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Batch:
    """Sequences of one length, and where their answers are.

    ids     [B, T + 1]  the model reads the first T and predicts the last T
    answer  [T]         which of the T predictions count, the same for all rows
    """

    ids: Tensor
    answer: Tensor


class Task(Protocol):
    """A source of sequences with known answers."""

    name: ClassVar[str]
    vocab: int

    def tokens(self, length: int) -> int:
        """How many tokens the model reads in a sequence of this length (length is counted in the task's own items)."""
        ...

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        """Fresh sequences."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt as a person writes it, BOS first."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Ids as a person reads them."""
        ...


def names() -> list[str]:
    """The names of all tasks."""
    return sorted(path.stem for path in HOME.glob("*.py") if not path.stem.startswith("_"))


def find(name: str) -> type:
    """The class of a named task. Raises ValueError, naming what is near, for a name that does not exist."""
    if name not in names():
        raise ValueError(f"no task named {quoted(name)}; there are: {', '.join(names())}{near(name, names())}")
    module = importlib.import_module(f"posenc.lab.tasks.{name}")
    return next(c for c in vars(module).values() if getattr(c, "name", None) == name)


class Symbols:
    """What the tasks on symbols share: `symbols` letters behind BOS, SEPARATOR and END."""

    symbols: ClassVar[int] = 26

    def __init__(self) -> None:
        self.vocab = 3 + self.symbols

    def tokens(self, length: int) -> int:
        return 2 * length + 2  # BOS, the prompt, SEPARATOR, and the answer without its END

    def encode(self, text: str) -> list[int]:
        known = LETTERS[: self.symbols] + "|"
        wrong = sorted({letter for letter in text if letter not in known})
        if wrong:
            raise ValueError(
                f"a prompt for this task is written in {LETTERS[: self.symbols]} and |, "
                f"got {', '.join(map(repr, wrong))}"
            )
        return [BOS, *(SEPARATOR if letter == "|" else 3 + LETTERS.index(letter) for letter in text)]

    def decode(self, ids: list[int]) -> str:
        words = {BOS: "^", SEPARATOR: "|", END: "."}
        return "".join(words.get(i) or LETTERS[i - 3] for i in ids)
