"""Say one symbol as often as the prompt does: aaa| -> aaa."""

from torch import Generator

from posenc.lab.tasks import Batch, Symbols
from posenc.lab.tasks._prompt import prompt_and_answer, random_symbols


class Repeat(Symbols):
    """Say one symbol as often as the prompt does: aaa| -> aaa.

    The content is trivial and only the count matters: without position a model generalises, with one it breaks early.
    """

    name = "repeat"

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(1, rows, self.symbols, generator).T.expand(length, rows).T
        return prompt_and_answer(prompt, prompt)
