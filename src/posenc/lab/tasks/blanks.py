"""Answer at blanks behind the prompt, all at once: cab|??? -> bac."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, SEPARATOR, Symbols, column, random_symbols
from posenc.lab.tasks._task import Batch

ANSWERS = MappingProxyType(
    {
        "copy": lambda prompt: prompt,
        "odds_first": lambda prompt: torch.cat((prompt[:, ::2], prompt[:, 1::2]), 1),
        "reverse": lambda prompt: prompt.flip(1),
    }
)


@dataclass(frozen=True, kw_only=True)
class Blanks(Symbols):
    """Answer at blanks behind the prompt, all at once: cab|??? -> bac.

    The tasks of decoders as an encoder reads them: it sees the whole prompt and one blank for each symbol of the
    answer, and nothing of the answer. So a blank knows by its position alone which symbol it stands for.

    symbols  how many different symbols there are
    answer   what is said of the prompt: reverse, copy or odds_first, as the tasks of these names do

    Source: Ruoss et al. 2023, arXiv:2305.16843, section 4.
    """

    symbols: int = 2
    answer: str = "reverse"

    also_called = ("infill", "transform")
    reads = "encoder"
    beyond = (1.2, 1.5, 2, 2.5)
    blank = "?"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(f"{self.spec_name}: answer", self.answer, tuple(ANSWERS))

    @property
    def letters(self) -> str:
        return super().letters + self.blank

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(length, rows, self.symbols, generator)
        before = torch.cat((column(rows, BOS), prompt, column(rows, SEPARATOR)), 1)
        blanks = torch.full((rows, length), self.id(self.blank))
        answer = ANSWERS[self.answer](prompt)
        counts = torch.arange(2 * length + 2) >= length + 2
        return Batch(torch.cat((before, blanks), 1), torch.cat((before, answer), 1), counts)
