"""Say a symbol as often as it came in the prompt: abcab|a -> aa."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, END, SEPARATOR, Symbols, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class Counting(Symbols):
    """Say a symbol as often as it came in the prompt: abcab|a -> aa.

    The count is uniform from 0 to the length. Where the symbol stands does not matter: a model without position
    generalises furthest, and one with position has to learn to ignore it.

    symbols  how many different symbols there are

    Source: Golovneva et al. 2024, arXiv:2405.18719, section 5.3 (counting), here in as many symbols.
    """

    symbols: int = 8

    also_called = ("count", "counting", "occurrence", "frequency", "often", "many")
    recipe = MappingProxyType({"steps": 1500, "batch": 32, "cool_down": 100})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.whole, symbols=2)

    def tokens(self, length: int) -> int:
        return 2 * length + 3  # BOS, the prompt, SEPARATOR, the question, and the answer without its END

    def chance(self, length: int) -> float:
        return 1 / (length + 1)  # "none at all", which needs no symbol

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        question = torch.randint(0, self.symbols, (rows, 1), generator=generator)
        count = torch.randint(0, length + 1, (rows, 1), generator=generator)
        other_symbols = (question + torch.randint(1, self.symbols, (rows, length), generator=generator)) % self.symbols
        is_match = torch.rand(rows, length, generator=generator).argsort(1) < count
        prompt = torch.where(is_match, question, other_symbols)
        # END fills shorter answers.
        answer = torch.where(torch.arange(length + 1) < count, 3 + question, END)
        sequence = torch.cat((column(rows, BOS), 3 + prompt, column(rows, SEPARATOR), 3 + question, answer), 1)
        place, begin = torch.arange(2 * length + 3), length + 2
        return Batch.of_next(sequence, (place >= begin) & (place <= begin + count))
