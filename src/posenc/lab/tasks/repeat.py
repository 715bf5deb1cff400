"""Say one symbol as often as the prompt does: aaa| -> aaa."""

from dataclasses import dataclass

from torch import Generator

from posenc.lab.tasks._symbols import Symbols, prompt_and_answer, random_symbols
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class Repeat(Symbols):
    """Say one symbol as often as the prompt does: aaa| -> aaa.

    The content is trivial and only the count matters: without position a model generalises, with one it breaks early.

    symbols  how many different symbols there are

    Source: Kazemnejad et al. 2023, arXiv:2305.19466, section 4.
    """

    also_called = ("repeat", "same", "constant")

    def chance(self, length: int) -> float:
        return 1 / self.symbols

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(1, rows, self.symbols, generator).T.expand(length, rows).T
        return prompt_and_answer(prompt, prompt)
