"""Say what followed the last symbol the last time that it came: cabdca -> b."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc.lab.tasks._symbols import BOS, Symbols, column, random_symbols
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class Induction(Symbols):
    """Say what followed the last symbol the last time that it came: cabdca -> b.

    The model has to know which symbol follows which, by the token before, and which of several places is the last, by a
    preference for near tokens.

    The length is the number of symbols before the last one, which is one of them.

    symbols  how many different symbols there are

    Raises ValueError for a length below 2.
    Source: Olsson et al. 2022, arXiv:2209.11895, key concepts (induction heads).
    """

    symbols: int = 16

    also_called = ("pattern", "again", "followed", "induction", "repetition", "shot")
    recipe = MappingProxyType(
        {"train_length": 16, "steps": 1500, "batch": 64, "rate": 2e-3, "curriculum": 0.24, "cool_down": 200}
    )
    shortest = 2

    def tokens(self, length: int) -> int:
        return length + 2  # BOS, the symbols, and the last one

    def chance(self, length: int) -> float:
        return 1 / self.symbols

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if length < self.shortest:
            raise ValueError(f"induction needs a symbol that another one followed: lengths of 2 or more, got {length}")
        symbols = random_symbols(length, rows, self.symbols, generator)
        question = symbols.gather(1, torch.randint(0, length - 1, (rows, 1), generator=generator))
        sequence = torch.cat((symbols, question), 1)
        last = torch.where(symbols == question, torch.arange(length), -1).amax(1, keepdim=True)
        sequence = torch.cat((column(rows, BOS), sequence, sequence.gather(1, last + 1)), 1)
        return Batch.of_next(sequence, torch.arange(length + 2) > length)
