"""Say the prompt in alphabetical order: cab| -> abc."""

import math
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from posenc.lab.tasks._symbols import Said


@dataclass(frozen=True, kw_only=True)
class Sort(Said):
    """Say the prompt in alphabetical order: cab| -> abc.

    The answer does not depend on the order of the prompt; what counts is how often each symbol stands in it.

    symbols  how many different symbols there are

    Source: Kazemnejad et al. 2023, arXiv:2305.19466, section 4.
    """

    symbols: int = 10

    also_called = ("sort", "sorting", "alphabetical", "rank")
    recipe = MappingProxyType({"steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200})

    def chance(self, length: int) -> float:
        # Most prompts have the answer in which every symbol stands about equally often.
        each, left = divmod(length, self.symbols)
        same = math.factorial(each) ** (self.symbols - left) * math.factorial(each + 1) ** left
        return math.factorial(length) / same / self.symbols**length

    def said(self, prompt: Tensor) -> Tensor:
        return prompt.sort(1).values
