"""Say whether the number of ones is odd: 10110| -> 1."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, SEPARATOR, LetterTask, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class Parity(LetterTask):
    """Say whether the number of ones is odd: 10110| -> 1.

    Order does not matter, and every bit does. At short lengths a model learns a table rather than a count, and soon
    fails beyond them.

    running  whether every bit has an answer, the parity of the bits up to there, instead of one after a separator

    Source: Delétang et al. 2022, arXiv:2207.02098, appendix A.1.
    """

    running: bool = False

    also_called = ("parity", "xor", "even", "odd")
    recipe = MappingProxyType(
        {"train_length": 6, "steps": 1500, "batch": 64, "rate": 3e-3, "curriculum": 0.3, "cool_down": 100}
    )
    letters = "01"

    def __post_init__(self) -> None:
        self.hold(checks.kind, running=bool)

    def tokens(self, length: int) -> int:
        return length + 1 if self.running else length + 2  # BOS, the bits, and SEPARATOR

    def chance(self, length: int) -> float:
        return 0.5**length if self.running else 0.5

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        bits = torch.randint(0, 2, (rows, length), generator=generator)
        odd = bits.cumsum(1) % 2
        if self.running:
            ids = torch.cat((column(rows, BOS), 3 + bits), 1)
            # BOS has no answer.
            return Batch(ids, torch.cat((column(rows, BOS), 3 + odd), 1), torch.arange(length + 1) > 0)
        sequence = torch.cat((column(rows, BOS), 3 + bits, column(rows, SEPARATOR), 3 + odd[:, -1:]), 1)
        return Batch.of_next(sequence, torch.arange(length + 2) > length)
