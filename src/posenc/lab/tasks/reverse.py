"""Say the prompt backwards: cab| -> bac."""

from torch import Generator

from posenc.lab.tasks import Batch, Symbols
from posenc.lab.tasks._prompt import prompt_and_answer, random_symbols


class Reverse(Symbols):
    """Say the prompt backwards: cab| -> bac.

    Source and answer are at a different distance for every symbol; at small sizes nothing carries beyond the trained
    length.
    """

    name = "reverse"

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(length, rows, self.symbols, generator)
        return prompt_and_answer(prompt, prompt.flip(1))
