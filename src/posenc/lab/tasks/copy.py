"""Say the prompt again: cab| -> cab."""

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from posenc.lab.tasks._symbols import Said


@dataclass(frozen=True, kw_only=True)
class Copy(Said):
    """Say the prompt again: cab| -> cab.

    Each symbol has to be found by its place: relative encodings carry some way, absolute ones do not.

    symbols  how many different symbols there are

    Source: Kazemnejad et al. 2023, arXiv:2305.19466, section 4.
    """

    source = "Kazemnejad et al. 2023, arXiv:2305.19466, section 4"
    recipe = MappingProxyType({"steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200})

    def said(self, prompt: Tensor) -> Tensor:
        return prompt
