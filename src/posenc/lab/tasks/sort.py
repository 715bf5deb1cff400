"""Say the prompt in alphabetical order: cab| -> abc."""

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

    source = "Kazemnejad et al. 2023, arXiv:2305.19466, section 4"
    recipe = MappingProxyType({"steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200})

    def said(self, prompt: Tensor) -> Tensor:
        return prompt.sort(1).values
