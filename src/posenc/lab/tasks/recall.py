"""Associative recall: after pairs of key and value, say the value of each asked key: axby|by -> y."""

import math
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, SEPARATOR, Symbols, column
from posenc.lab.tasks._task import Batch

QUESTIONS = ("all", "one")


@dataclass(frozen=True, kw_only=True)
class Recall(Symbols):
    """Associative recall: after pairs of key and value, say the value of each key that is asked for: axby|by -> y.

    The length is the number of pairs. Keys are different symbols of the first half, values symbols of the second half;
    the questions have another order than the pairs. Only which symbol follows which matters.

    symbols    how many different symbols there are: half of them keys, half values
    questions  all: one question for every key; one: a single question

    Source: Arora et al. 2023, arXiv:2312.04927, section 4 (multi-query associative recall).
    """

    symbols: int = 32
    questions: str = "all"

    also_called = ("recall", "lookup", "dictionary", "key", "value", "associative", "retrieve", "retrieval", "table")
    recipe = MappingProxyType(
        {"train_length": 8, "steps": 1000, "batch": 64, "rate": 2e-3, "curriculum": 0.24, "cool_down": 200}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.whole, symbols=2)
        self.hold(checks.one_of, questions=QUESTIONS)

    @property
    def half(self) -> int:
        """The number of keys, and of values."""
        return self.symbols // 2

    def question_count(self, length: int) -> int:
        """The number of questions."""
        return length if self.questions == "all" else 1

    def tokens(self, length: int) -> int:
        return 2 * (length + self.question_count(length)) + 1  # BOS, pairs, SEPARATOR, questions without the last value

    def chance(self, length: int) -> float:
        return math.prod([1 / self.half] * self.question_count(length))

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if length > self.half:
            wrong = f"recall has {self.half} different keys"
            raise ValueError(f"{wrong}, and cannot make {length} pairs; choose lengths up to {self.half}")
        keys = 3 + torch.rand(rows, self.half, generator=generator).argsort(1)[:, :length]
        values = 3 + self.half + torch.randint(0, self.half, (rows, length), generator=generator)
        order = torch.rand(rows, length, generator=generator).argsort(1)[:, : self.question_count(length)]
        pairs = torch.stack((keys, values), -1).flatten(1)
        questions = torch.stack((keys.gather(1, order), values.gather(1, order)), -1).flatten(1)
        sequence = torch.cat((column(rows, BOS), pairs, column(rows, SEPARATOR), questions), 1)
        place = torch.arange(sequence.shape[1] - 1)
        first = 2 * length + 2  # the prediction of the first asked value
        return Batch.of_next(sequence, (place >= first) & ((place - first) % 2 == 0))
