"""Say the prompt in alphabetical order: cab| -> abc."""

import math
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from posenc.lab.tasks._symbols import Rewrite


@dataclass(frozen=True, kw_only=True)
class Sort(Rewrite):
    """Say the prompt in alphabetical order: cab| -> abc.

    The answer does not depend on the order of the prompt, only on the count of each symbol.

    symbols  how many different symbols there are

    Source: Kazemnejad et al. 2023, arXiv:2305.19466, section 4.
    """

    symbols: int = 10

    also_called = ("sort", "sorting", "alphabetical", "rank")
    recipe = MappingProxyType({"steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200})

    def chance(self, length: int) -> float:
        # The most frequent answer has every symbol about equally often.
        count, remainder = divmod(length, self.symbols)
        arrangements = math.factorial(count) ** (self.symbols - remainder) * math.factorial(count + 1) ** remainder
        return math.factorial(length) / arrangements / self.symbols**length

    def rewrite(self, prompt: Tensor) -> Tensor:
        return prompt.sort(1).values
