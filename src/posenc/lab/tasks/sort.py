"""Say the prompt in alphabetical order: cab| -> abc."""

from torch import Generator

from posenc.lab.tasks import Batch, Symbols
from posenc.lab.tasks._prompt import prompt_and_answer, random_symbols


class Sort(Symbols):
    """Say the prompt in alphabetical order: cab| -> abc.

    The answer does not depend on the order of the prompt; what counts is how often each symbol stands in it.
    """

    name = "sort"
    symbols = 10

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        prompt = random_symbols(length, rows, self.symbols, generator)
        return prompt_and_answer(prompt, prompt.sort(1).values)
