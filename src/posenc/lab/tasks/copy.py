"""Say the prompt again: cab| -> cab."""

from torch import Generator

from posenc.lab.tasks import Batch, Symbols
from posenc.lab.tasks._prompt import prompt_and_answer, random_symbols


class Copy(Symbols):
    """Say the prompt again: cab| -> cab.

    Each symbol has to be found by its place: relative encodings carry some way, absolute ones do not.
    """

    name = "copy"

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(length, rows, self.symbols, generator)
        return prompt_and_answer(prompt, prompt)
